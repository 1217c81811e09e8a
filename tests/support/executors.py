"""Spark's own processes below a driver: executor JVMs and Python workers, found by what /proc says."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def descendants(pid: int | None = None) -> dict[int, str]:
    """Pid -> command line of every living process below this one."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if fields[0] not in "ZX":
            parents[int(folder.name)], commands[int(folder.name)] = int(fields[1]), command
    found: dict[int, str] = {}
    newest = {os.getpid() if pid is None else pid}
    while newest := {child for child, parent in parents.items() if parent in newest and child not in found}:
        found.update((child, commands[child]) for child in newest)
    return found


def executor_jvms() -> list[int]:
    """Executor JVMs of a local-cluster below this process."""
    return sorted(pid for pid, command in descendants().items() if "CoarseGrainedExecutorBackend" in command)


def python_workers() -> list[int]:
    """Python workers below this process; daemons, which never run a task, are not among them."""
    python = {pid for pid, command in descendants().items() if "pyspark.daemon" in command}
    return sorted(pid for pid in python if _parent(pid) in python)


def kill(pid: int) -> None:
    """SIGKILL, where it still runs."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def is_alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0
