"""Ends an engine that cannot end itself when its executor goes: it is stopped, or stuck in a call that lets no thread run.

Every engine process runs this file beside itself, ``python -I -S guard.py PID FOLDER SOCKET BLOCK_MANAGER``: a process of a few
megabytes with nothing but the standard library, which ends with the engine.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
from pathlib import Path

_LOOK_S = 1.0
#: What an engine that is well needs to leave by itself.
_GRACE_S = 5.0


class _Process:
    """A process by its pid and, against a reused pid, the moment it began."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.started = _started(pid)
        try:
            self._pidfd: int | None = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self._pidfd = None

    def is_alive(self) -> bool:
        return self.started is not None and _started(self.pid) == self.started

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end."""
        select.select([] if self._pidfd is None else [self._pidfd], [], [], seconds)
        return not self.is_alive()


def guard(engine: _Process, folder: Path, socket: Path, block_manager: Path | None) -> None:
    """Look once a second until the engine has ended, by itself or from here."""
    while not engine.ends_within(_LOOK_S):
        if _executor_is_gone(folder, block_manager) and not engine.ends_within(_GRACE_S):
            os.kill(engine.pid, signal.SIGKILL)
            socket.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            return


def _executor_is_gone(folder: Path, block_manager: Path | None) -> bool:
    """The reasons of :class:`sparkinfer.host.watch.LifeWatch`, but for the idle time."""
    if not folder.is_dir() or (block_manager is not None and not block_manager.is_dir()):
        return True
    try:
        pid, started = json.loads((folder / "owner.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no worker has put it down yet
        return False
    return _started(pid) != started


def _started(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process that runs; None for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


if __name__ == "__main__":
    _pid, _folder, _socket, _block_manager = sys.argv[1:]
    guard(_Process(int(_pid)), Path(_folder), Path(_socket), Path(_block_manager) if _block_manager else None)
