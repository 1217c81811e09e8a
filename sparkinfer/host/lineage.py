"""Processes named so that a reused pid cannot be taken for them, and the JVM this process descends from."""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """A pid with the moment its process began (clock ticks since boot): together they are unique until a reboot."""

    pid: int
    started: int

    def is_alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        stat = _stat(self.pid)
        return stat is not None and stat.started == self.started and stat.state not in "ZX"

    def kill(self) -> None:
        """SIGKILL it, if it is still the same process."""
        if not self.is_alive():
            return
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


@dataclass(frozen=True, slots=True)
class _Stat:
    name: str
    state: str
    parent: int
    started: int


def mark_of(pid: int) -> ProcessMark | None:
    """The mark of a running process, or None where there is none."""
    stat = _stat(pid)
    return None if stat is None else ProcessMark(pid, stat.started)


def own_mark() -> ProcessMark:
    """The mark of this process."""
    mark = mark_of(os.getpid())
    return mark if mark is not None else ProcessMark(os.getpid(), 0)


def java_ancestor() -> ProcessMark | None:
    """The nearest JVM above this process: the executor, where this is a Python worker of Spark."""
    pid = os.getpid()
    while pid > 1:
        stat = _stat(pid)
        if stat is None:
            return None
        if stat.name == "java":
            return ProcessMark(pid, stat.started)
        pid = stat.parent
    return None


def open_pidfd(mark: ProcessMark) -> int | None:
    """A file descriptor that becomes readable when the process ends; None where the kernel has none or it is gone."""
    try:
        descriptor = os.pidfd_open(mark.pid)
    except (AttributeError, OSError):
        return None
    if mark.is_alive():  # the pid was not reused between reading the mark and opening it
        return descriptor
    os.close(descriptor)
    return None


def pidfd_ended(descriptor: int) -> bool:
    """Whether the process behind a pidfd has ended."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")  # the name may hold spaces and brackets
    fields = tail.split()
    return _Stat(name=head.partition("(")[2], state=fields[0], parent=int(fields[1]), started=int(fields[19]))
