"""What a step of the sample model costs by its kind: forward alone, best and median of five, no scheduling and no sampling;
what is recorded (decode steps of few rows), both run anew and replayed.

``--compiled`` lets torch.compile have the decoder layers instead of fusing modules, as the engine does where a trial shows that it pays.

    python benchmarks/steps.py [--threads 2] [--compiled]
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from sparkinfer.host.process import waiting_threads

os.environ.update(waiting_threads())  # as the engine process has them, before torch is imported


from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.compile_trial import batch_of
from sparkinfer.engine.create import build_engine, create_engine
from sparkinfer.model import fetch, load, resolve

BLOCK = 16
#: Name -> sequences, tokens there already, tokens of this step.
STEPS = {
    "prefill 8 x 256": (8, 0, 256),
    "decode 64 rows": (64, 300, 1),
    "decode 16 rows": (16, 300, 1),
    "decode 2 rows": (2, 300, 1),
}


def measure(runner: Any, title: str) -> None:
    """Print a line a step, and one more where it is recorded: run anew and replayed in turn."""
    recordings = runner._recordings
    for name, shape in STEPS.items():
        batch = batch_of(*shape, block_size=BLOCK, num_blocks=runner.num_blocks)
        seconds: dict[str, list[float]] = {title: [], "replayed": []}
        for _ in range(8):
            for way, spent in seconds.items():
                runner._recordings = recordings if way == "replayed" else None
                start = time.perf_counter()
                runner.logits(batch)
                spent.append(time.perf_counter() - start)
        runner._recordings = recordings
        is_recorded = recordings is not None and batch.num_tokens in recordings.recorded
        for way, spent in seconds.items():
            last = sorted(spent[-5:])  # behind those in which it is recorded
            if way == title or is_recorded:
                print(f"{way:10s} {name:16s} best {last[0] * 1e3:7.1f} ms  median {last[2] * 1e3:7.1f} ms", flush=True)


def main() -> None:
    """Load the sample model and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--compiled", action="store_true")
    asked = parser.parse_args()
    ref = resolve("sample")
    spec = EngineSpec(model=ref, dtype="fp32", fallback=False, settings=EngineSettings(threads=asked.threads))
    engine: Any = create_engine(spec, fetch(ref))
    runner = engine.runner
    measure(runner, "run anew")
    if not asked.compiled:
        return
    start = time.perf_counter()
    model = load(fetch(ref), dtype="fp32")
    compiled: Any = build_engine(model, spec, dtype="fp32", device="cpu", threads=asked.threads, compiled=True)
    runner = compiled.runner
    runner.logits(batch_of(*STEPS["decode 16 rows"], block_size=BLOCK))
    print(f"compiling took {time.perf_counter() - start:.0f} s")
    measure(runner, "compiled")


if __name__ == "__main__":
    main()
