"""The control groups that this process is in, whose limits hold for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def folders(controller: str) -> Iterator[Path]:
    """This process's control group of version 2 and of version 1's controller, each with those above it."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, inner = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        root = _ROOT / controller if controllers else _ROOT
        folder = root / inner.lstrip("/")
        while True:  # inside a container the path may not exist as named; its root does
            yield folder
            if folder in (root, folder.parent):
                break
            folder = folder.parent
