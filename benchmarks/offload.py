"""What it costs to keep a part of a model's weights on disk: tokens a second of one engine after the other, on the same prompts.

    python -m benchmarks.offload [--shares 1,0.75,0.5] [--rows 32] [--threads 2]

A share of 1 keeps all weights in memory. Layers on disk are read once for each step, whatever its tokens: large steps pay less.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from sparkinfer.host.process import waiting_threads

os.environ.update(waiting_threads())  # as the engine process has them, before torch is imported

from benchmarks.engine import run_engine, workload
from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.create import create_engine
from sparkinfer.model import fetch, resolve
from sparkinfer.model.memory import folder_weights_bytes

TOKENS_OUT = 16


def main() -> None:
    """Print a line for each share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", default="1,0.75,0.5")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    ref = resolve("sample")
    folder = fetch(ref)
    whole, found = folder_weights_bytes(folder), {}
    prompts, lengths = workload(folder, 0, asked.rows, TOKENS_OUT)
    print("| weights in memory, MiB | tokens out a second | of all in memory | tokens the same |\n|--:|--:|--:|--:|")
    for share in map(float, asked.shares.split(",")):
        kept = None if share >= 1 else int(whole * share)
        settings = EngineSettings(threads=asked.threads, batch_timeout_ms=0, max_model_len=2048, weights_memory=kept)
        engine = create_engine(EngineSpec(model=ref, settings=settings), folder)
        run_engine(engine, prompts[:4], lengths[:4])
        tokens, span = run_engine(engine, prompts, lengths)
        speed = sum(map(len, tokens)) / span.wall
        found[share] = (tokens, speed)
        first_tokens, first_speed = next(iter(found.values()))
        same = sum(a == b for a, b in zip(tokens, first_tokens, strict=True))
        megabytes = engine.info.weights_bytes / 2**20
        print(
            f"| {megabytes:.0f} | {speed:.1f} | {speed / first_speed:.2f} | {same} of {len(tokens)} rows |", flush=True
        )
        engine.close()


if __name__ == "__main__":
    main()
