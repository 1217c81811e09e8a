"""Benchmarks of one layer alone, each a module of its own in this folder, as a part of the whole run."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.cell import ROOT

SCRIPTS: dict[str, tuple[str, ...]] = {
    "on_top": (),
    "load_time": (),
    "round_trip": (),
    "scheduler_growth": ("--requests", "1000", "10000", "100000"),
}
"""Names and arguments."""


def run_script(name: str) -> str:
    """What a script prints."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *SCRIPTS[name]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    text = (
        done.stdout.strip()
        if done.returncode == 0
        else f"failed: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}"
    )
    print(f"{name}\n{text}", flush=True)
    return text
