"""What the CPU's attention kernel reaches: GFLOP/s, and GB/s of the keys and values that a step has to read.

Thirty layers with three key/value heads and nine query heads of 64, as the sample model has them; blocks lie scattered. Best of
six rounds. ``--memory`` tells what this machine reads from memory with all threads, the bound of decoding.

    python benchmarks/attention.py [--threads 2] [--memory]
"""

from __future__ import annotations

import argparse
import os
import time

from sparkinfer.host.process import waiting_threads

os.environ.update(waiting_threads())  # as the engine process has them, before torch is imported

import numpy as np
import torch

from sparkinfer.engine.attention.base import AttentionCall, LayerShape, PackedBatch, pack
from sparkinfer.engine.attention.cpu import CpuAttention
from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.kv import KvPool
from sparkinfer.engine.plan import PlannedSequence
from sparkinfer.engine.sequence import Sequence
from sparkinfer.types import SamplingParams

LAYERS, HEADS, KV_HEADS, DIM, BLOCK = 30, 9, 3, 64, 16
BLOCKS = 3000
#: Name -> sequences, tokens there already, tokens of this step, tokens of a prefix that all share.
STEPS = {
    "decode 64 rows after 300 tokens": (64, 300, 1, 0),
    "the same, 128 of them shared": (64, 300, 1, 128),
    "decode 4 rows after 300 tokens": (4, 300, 1, 0),
    "prefill 8 x 128 after a shared 128": (8, 128, 128, 128),
    "prefill 4 x 512": (4, 0, 512, 0),
}


def batch_of(rows: int, before: int, tokens: int, shared: int) -> PackedBatch:
    """One step's batch over blocks in random order."""
    blocks = np.random.default_rng(1).permutation(BLOCKS).tolist()
    prefix = [blocks.pop() for _ in range(shared // BLOCK)]
    items = []
    for number in range(rows):
        prompt = [3] * (before + tokens)
        sequence = Sequence.from_request(EngineRequest(request_id=number, prompt_ids=prompt, sampling=SamplingParams()))
        own = -(-len(prompt) // BLOCK) - len(prefix)
        sequence.block_ids = prefix + [blocks.pop() for _ in range(own)]
        items.append(PlannedSequence(sequence, before, tokens, True))
    return pack(items, BLOCK)


def measure(kernel: CpuAttention, batch: PackedBatch) -> float:
    """Seconds of all layers of a step."""
    query, key, value = (torch.randn(batch.num_tokens, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    call = AttentionCall(scaling=DIM**-0.5)
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        kernel.begin(batch)
        for layer in range(LAYERS):
            kernel.forward(layer, query, key, value, call)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def memory_speed() -> float:
    """Bytes a second that all threads read of an array that no cache holds."""
    array = torch.ones(1 << 28)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        array.sum()
        seconds.append(time.perf_counter() - start)
    return array.numel() * array.element_size() / min(seconds)


def main() -> None:
    """Print a line a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--memory", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    shape = LayerShape(kv_heads=KV_HEADS, k_dim=DIM, v_dim=DIM)
    pool = KvPool(
        [shape] * LAYERS, num_blocks=BLOCKS, block_size=BLOCK, dtype=torch.float32, device=torch.device("cpu")
    )
    for tensor in (*pool.keys, *pool.values):
        tensor.normal_()
    kernel = CpuAttention(pool, threads=asked.threads)
    for name, (rows, before, tokens, shared) in STEPS.items():
        batch = batch_of(rows, before, tokens, shared)
        seconds = measure(kernel, batch)
        pairs = rows * (before * tokens + tokens * (tokens + 1) / 2)
        flops = pairs * HEADS * DIM * 4 * LAYERS
        held = (rows * (before + tokens - shared) + shared) * KV_HEADS * DIM * 2 * 4 * LAYERS
        print(
            f"{name:36s} {seconds * 1e3:7.1f} ms  {flops / seconds / 1e9:6.1f} GFLOP/s  {held / seconds / 1e9:5.2f} GB/s",
            flush=True,
        )
    if asked.memory:
        print(f"{'memory, read by all threads':36s} {memory_speed() / 1e9:35.2f} GB/s")


if __name__ == "__main__":
    main()
