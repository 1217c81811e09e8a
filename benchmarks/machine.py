"""The machine: its facts, and its own peak on the model's shapes, measured in the run that it is compared in.

    python -m benchmarks.machine JOB.json RESULT.json       # called by the run, in a fresh process

A pass multiplies by every linear layer's weight in turn, each its own memory as in the model, so that few rows are bound
by memory and many by arithmetic, just as a model's step is.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Rows of the products that are measured; between them the time is interpolated."""
PACKAGES = ("sparkinfer", "torch", "transformers", "pyspark", "numba", "numpy")


def facts(threads: int) -> dict[str, Any]:
    """What the machine is, without anything that names it."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), platform.processor())
    flags = next((line.split(":")[1].split() for line in info if line.startswith("flags")), [])
    sets = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "avx512_bf16", "amx_bf16")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "instruction_sets": [name for name in sets if name in flags],
        "python": platform.python_version(),
        "kernel": platform.release(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "packages": {name: metadata.version(name) for name in PACKAGES},
    }


def linear_shapes(folder: str) -> tuple[list[tuple[int, int]], tuple[int, int], dict[str, int]]:
    """(in, out) of every linear layer in order, the head's, and the attention's sizes; built without weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings()
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head]
    sizes = {
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
    }
    return [(m.in_features, m.out_features) for m in layers], (head.in_features, head.out_features), sizes


def best_of(times: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls, after one to warm up."""
    work()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def products(shapes: list[tuple[int, int]], rows: tuple[int, ...], *, times: int) -> dict[str, float]:
    """Seconds of one pass over the layers in fp32, by rows."""
    import torch
    import torch.nn.functional as F

    weights = [torch.randn(out, into) * 0.02 for into, out in shapes]

    def one_pass(inputs: dict[int, Any]) -> None:
        for weight in weights:
            F.linear(inputs[weight.shape[1]], weight)

    inputs = {count: {into: torch.randn(count, into) for into, _ in shapes} for count in rows}
    return {str(count): best_of(times, partial(one_pass, inputs[count])) for count in rows}


def int8_gops(shapes: list[tuple[int, int]], *, rows: int, times: int) -> float | None:
    """Billions of operations a second of int8 products with int32 sums on the same shapes; None where torch has none here."""
    import torch

    weights = [torch.randint(-127, 127, (out, into), dtype=torch.int8) for into, out in shapes]
    inputs = {into: torch.randint(-127, 127, (rows, into), dtype=torch.int8) for into, _ in shapes}
    try:
        seconds = best_of(times, lambda: [torch._int_mm(inputs[w.shape[1]], w.t()) for w in weights])
    except (RuntimeError, AttributeError):
        return None
    return 2 * rows * sum(into * out for into, out in shapes) / seconds / 1e9


def bandwidth_gbs(*, times: int) -> float:
    """Billions of bytes a second read by a sum over memory larger than every cache."""
    import torch

    memory = torch.ones(128 * 2**20)
    return memory.numel() * memory.element_size() / best_of(times, memory.sum) / 1e9


def peaks(folder: str, threads: int, *, times: int) -> dict[str, Any]:
    """Everything that the floor is computed from."""
    import torch

    torch.set_num_threads(threads)
    shapes, head, sizes = linear_shapes(folder)
    with torch.inference_mode():
        body_s, head_s = products(shapes, ROWS, times=times), products([head], ROWS, times=times)
        flops = 2 * sum(into * out for into, out in shapes)
        speeds = {rows: int(rows) * flops / seconds / 1e9 for rows, seconds in body_s.items()}
        return {
            "body_s": body_s,
            "head_s": head_s,
            "gflops_by_rows": {rows: round(speed, 1) for rows, speed in speeds.items()},
            "fp32_gflops": max(speeds.values()),
            "int8_gops": int8_gops(shapes, rows=256, times=times),
            "read_gbs": bandwidth_gbs(times=times),
            "flops_per_token": flops,
            **sizes,
        }


def main() -> None:
    """Measure and write."""
    job = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(peaks(job["folder"], job["threads"], times=job["times"])))


if __name__ == "__main__":
    main()
