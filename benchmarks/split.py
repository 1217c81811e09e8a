"""What it costs to split a model over ranks: tokens a second of one process with all threads and of several that share them.

    python -m benchmarks.split [--ranks 1,3] [--rows 32] [--threads 2]

On one CPU nothing can be won: the ranks share its cores, and each layer's sums go through sockets. The figure is the price of
what a model larger than one device needs.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from sparkinfer.host.process import waiting_threads

os.environ.update(waiting_threads())  # as the engine process has them, before torch is imported

from benchmarks.engine import run_engine, workload
from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.create import create_engine
from sparkinfer.model import fetch, resolve

TOKENS_OUT = 16


def main() -> None:
    """Print a line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,3", help="the sample model's heads can be shared by 1 and 3")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    ref = resolve("sample")
    folder, found = fetch(ref), []
    prompts, lengths = workload(folder, 0, asked.rows, TOKENS_OUT)
    print("| ranks | ready after, s | tokens out a second | of the first | tokens the same |\n|--:|--:|--:|--:|--:|")
    for ranks in map(int, asked.ranks.split(",")):
        settings = EngineSettings(
            threads=asked.threads, batch_timeout_ms=0, max_model_len=2048, kv_memory=256 << 20, tensor_parallel=ranks
        )
        start = time.perf_counter()
        engine = create_engine(EngineSpec(model=ref, settings=settings), folder)
        ready = time.perf_counter() - start
        run_engine(engine, prompts[:4], lengths[:4])
        tokens, span = run_engine(engine, prompts, lengths)
        found.append((tokens, sum(map(len, tokens)) / span.wall))
        same = sum(a == b for a, b in zip(tokens, found[0][0], strict=True))
        speed = found[-1][1]
        print(
            f"| {ranks} | {ready:.1f} | {speed:.1f} | {speed / found[0][1]:.2f} | {same} of {len(tokens)} rows |",
            flush=True,
        )
        engine.close()


if __name__ == "__main__":
    main()
