"""What Spark adds: a job's seconds by the clock over those in which the engine computed, in the same job.

    python -m benchmarks.on_top [--rows 96] [--rounds 2]

Two jobs that are compared with each other meet other minutes of a machine that others use; this compares a job with itself. What
Spark's processes take from the engine's cores meanwhile is told as CPU seconds: at most so much slower the engine's steps were.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import psutil

from benchmarks.peers import Ask, Setting
from benchmarks.peers.spark import Peer, engine_place
from benchmarks.workloads import MAX_MODEL_LEN, WORKLOADS, read_rows
from sparkinfer.host.running import metrics, running_engines
from sparkinfer.model import fetch, resolve


def cpu_seconds(*, but: int) -> dict[int, float]:
    """Of this process and all below it, without one of them and what is below that."""
    found = {}
    others = {but, *(child.pid for child in psutil.Process(but).children(recursive=True))}
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        if process.pid not in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found[process.pid] = times.user + times.system
    return found


def main() -> None:
    """Print a line a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    print(
        "| workload | rows | job, s | engine's steps, s | on top | Spark's CPU, s | of all cores |\n|---|--:|--:|--:|--:|--:|--:|"
    )
    for name in ("classify", "extract"):
        workload = WORKLOADS[name]
        rows = read_rows(workload, num_rows=asked.rows)
        with tempfile.TemporaryDirectory() as scratch:
            peer = Peer(
                Setting(
                    folder=str(fetch(resolve("sample"))),
                    prompt=workload.prompt,
                    threads=asked.threads,
                    max_model_len=MAX_MODEL_LEN,
                    scratch=scratch,
                    options={"slots": asked.slots},
                )
            )
            peer.load()
            place = engine_place(peer.session)
            (engine,) = running_engines(place.folder)
            for given in [rows.first, rows.warm][: asked.rounds]:
                asks = [Ask(text=row.text, max_tokens=row.max_tokens, prompt_ids=[]) for row in given]
                before, steps, began = (
                    cpu_seconds(but=engine.mark.pid),
                    metrics(place)[0]["step_s"],
                    time.perf_counter(),
                )
                peer.run(asks, {})
                wall, steps = time.perf_counter() - began, metrics(place)[0]["step_s"] - steps
                after = cpu_seconds(but=engine.mark.pid)
                used = sum(now - before.get(pid, 0.0) for pid, now in after.items())
                print(
                    f"| {name} | {len(asks)} | {wall:.1f} | {steps:.1f} | {wall / steps - 1:.1%} | {used:.1f} "
                    f"| {used / wall / asked.threads:.1%} |",
                    flush=True,
                )
            peer.close()


if __name__ == "__main__":
    main()
