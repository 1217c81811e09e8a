"""Sockets that nobody listens on any more: an engine that was killed together with its executor could not remove its own."""

from __future__ import annotations

import socket
import time
from pathlib import Path

#: Between a socket's file and its first listener lies a moment; younger ones are left alone.
_YOUNG_S = 5.0


def sweep(folder: Path) -> list[Path]:
    """Remove the dead sockets of the folder where engines with long paths have theirs.

    Returns:
        What was removed.
    """
    removed = []
    for path in folder.glob("*.s"):
        try:
            if abs(time.time() - path.stat().st_mtime) < _YOUNG_S or _has_a_listener(path):
                continue
            path.unlink()
        except OSError:  # gone meanwhile, or another user's
            continue
        removed.append(path)
    return removed


def _has_a_listener(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as trial:
        trial.setblocking(False)
        try:
            trial.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:  # its queue is full: somebody is there
            return True
        return True
