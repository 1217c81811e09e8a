"""Processes of this machine by what stands in their command lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def pids_of(module: str, has: Callable[[list[str]], bool]) -> list[int]:
    """Pids of living processes that run this module and whose arguments are meant."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="surrogateescape").split("\0")
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if module in command and state != "Z" and has(command):
            found.append(int(path.parent.name))
    return found
