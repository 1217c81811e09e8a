"""Small disks and little memory for one test: real ones, where this machine lets us make them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, *, size: str) -> Iterator[Callable[[str], object]]:
    """A disk of this size mounted at ``place``; gives a function that mounts it again with other options."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting needs root in this container")
    try:
        yield lambda options: subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    """Leave no byte free."""
    with (place / "ballast").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@contextmanager
def memory_limit(megabytes: int) -> Iterator[Callable[[], None]]:
    """A control group with so much memory; gives a function by which a process enters it (``preexec_fn``)."""
    for root, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup") / root / f"sparkinfer-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(megabytes * 1024 * 1024))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        break
    else:
        pytest.skip("control groups of memory cannot be made in this container")
    try:
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None
    finally:
        group.rmdir()
