"""One cell: a program in a fresh process, its memory watched, its result kept as one JSON file, its leftovers ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".bench-envs"
MARK = "SPARKINFER_BENCH_CELL"
"""Environment variable that all processes of a cell inherit, whatever session or parent they have."""
LOG_LINES = 8
#: Of the machine's settings, those that would give one peer other threads than the others.
_DROPPED = (
    "OMP_PROC_BIND",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PYTHONPATH",
)


def run_cell(
    target: Path, program: list[str], job: dict[str, Any], *, environment: str, threads: int, limit_s: float
) -> dict[str, Any]:
    """The cell's result: the one that lies at ``target`` already, else measured now and put there.

    A failure is a result too (``error`` holds the end of the log), but it is not kept: the next run tries again.

    Args:
        target: the cell's file.
        program: module and arguments before the job's and the result's paths.
        job: what the program reads; ``scratch`` in it is replaced by a folder of the cell's own.
        environment: folder below ``.bench-envs``, or empty for this Python.
        threads: for OpenMP, numba and the like.
        limit_s: seconds after which the cell is ended.
    """
    if target.exists():
        return json.loads(target.read_text())
    with tempfile.TemporaryDirectory(prefix="sparkinfer-bench-") as folder:
        scratch = Path(folder)
        if "setting" in job:
            job = {**job, "setting": {**job["setting"], "scratch": folder}}
        (scratch / "job.json").write_text(json.dumps(job))
        result = _run(scratch, program, environment=environment, threads=threads, limit_s=limit_s)
    result["ended"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if "error" not in result:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(".part")
        fresh.write_text(json.dumps(result))
        fresh.replace(target)
    return result


def python_of(environment: str) -> Path:
    """The interpreter of a peer's environment, or this one."""
    return ENVIRONMENTS / environment / "bin" / "python" if environment else Path(sys.executable)


def _run(scratch: Path, program: list[str], *, environment: str, threads: int, limit_s: float) -> dict[str, Any]:
    mark, log, answer = uuid4().hex, scratch / "log", scratch / "result.json"
    kept = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    env = kept | {MARK: mark, "HF_HUB_OFFLINE": "1", "TMPDIR": str(scratch), "TOKENIZERS_PARALLELISM": "false"}
    env |= dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))
    load_before, began, peak = os.getloadavg()[0], time.monotonic(), 0
    try:
        with log.open("wb") as out:
            command = [str(python_of(environment)), "-m", *program, str(scratch / "job.json"), str(answer)]
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            while process.poll() is None and time.monotonic() - began < limit_s:
                looked = time.monotonic()
                peak = max(peak, resident_bytes(mark))
                # A look walks the cell's pages; of that, no more than the hundredth part of a core.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.5, 100 * (time.monotonic() - looked)))
        timed_out = process.poll() is None
    finally:
        end_all(mark)
    about = {"wall_s": time.monotonic() - began, "peak_mb": peak / 2**20, "load_before": load_before}
    if answer.exists() and not timed_out:
        return {**json.loads(answer.read_text()), **about}
    tail = log.read_text(errors="replace").strip().splitlines()[-LOG_LINES:]
    why = f"ended after {limit_s:.0f} s" if timed_out else f"exit code {process.returncode}"
    return {**about, "error": "\n".join([why, *tail])}


def members(mark: str) -> list[int]:
    """Processes that carry the cell's mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def resident_bytes(mark: str) -> int:
    """Memory of the cell's processes; pages that they share among them count once (proportional set size)."""
    total = 0
    for pid in members(mark):
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
    return total


def end_all(mark: str) -> None:
    """End what the cell started and left: asked first, then killed."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        for _ in range(20):
            left = [pid for pid in members(mark) if pid != os.getpid()]
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, ending)
            time.sleep(0.25)
