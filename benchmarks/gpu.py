"""The engine on this machine's GPU: tokens a second by dtype, on the prompts of ``benchmarks/engine.py``.

python -m benchmarks.gpu [--rows 400] [--dtypes bf16,fp16,int8,fp8,int4]
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from benchmarks.engine import run_engine, workload
from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.create import create_engine
from sparkinfer.model import fetch, resolve


def main() -> None:
    """Print a line for each dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--dtypes", default="bf16,fp16,int8,fp8,int4")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: torch.cuda.is_available() is false; nothing is measured")
        return
    ref = resolve("sample")
    folder = fetch(ref)
    prompts, lengths = workload(folder, 0, min(asked.rows, 400), None)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("| engine | ready after, s | tokens out a second | GPU memory, MiB |\n|---|--:|--:|--:|")
    for dtype in asked.dtypes.split(","):
        began = time.perf_counter()
        settings = EngineSettings(device="cuda", batch_timeout_ms=0, max_model_len=2048)
        engine = create_engine(EngineSpec(model=ref, dtype=dtype, settings=settings), folder)
        ready = time.perf_counter() - began
        run_engine(engine, prompts[:16], lengths[:16])
        tokens, span = run_engine(engine, prompts, lengths)
        speed = sum(map(len, tokens)) / span.wall
        used = torch.cuda.max_memory_allocated() / 2**20
        print(f"| {engine.info.label} | {ready:.1f} | {speed:.0f} | {used:.0f} |", flush=True)
        engine.close()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
