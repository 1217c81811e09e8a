"""The user's cache: converted and downloaded models, each a folder that is there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from sparkinfer.errors import DiskFull, PermissionDenied
from sparkinfer.model.lock import host_lock


def cache_root() -> Path:
    """``$SPARKINFER_CACHE``, else ``$XDG_CACHE_HOME/sparkinfer``, else ``~/.cache/sparkinfer``; a temporary folder of
    this user where there is no home (some executors have none)."""
    if own := os.environ.get("SPARKINFER_CACHE"):
        return Path(own)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "sparkinfer"
    with contextlib.suppress(RuntimeError):  # no home
        home = Path.home()
        if os.access(home, os.W_OK):
            return home / ".cache" / "sparkinfer"
    return Path(tempfile.gettempdir()) / f"sparkinfer-{os.getuid()}"


def entry(name: str, digest: str) -> Path:
    """The folder of one model in the cache: a readable name and the first 16 digits of what identifies it."""
    return cache_root() / "models" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{digest[:16]}"


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """The folder ``target``; made by ``build`` if it is not there, by one process of this host, and visible only when whole.

    Args:
        target: where the folder shall be.
        build: fills the empty folder that it is given; what it raises is passed on and nothing is left behind.

    Raises:
        DiskFull: no space for it.
        PermissionDenied: the cache cannot be written.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with host_lock(target.with_name(target.name + ".lock")):
            if not target.is_dir():
                _build(target, build)
    except OSError as error:
        raise _explained(error, target) from error
    return target


def _build(target: Path, build: Callable[[Path], None]) -> None:
    for left in target.parent.glob(f"{target.name}.part-*"):  # of a process that died: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f"{target.name}.part-", dir=target.parent))
    try:
        build(part)
        part.chmod(0o755)  # mkdtemp's 0700 would hide a shared cache from other users
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _explained(error: OSError, target: Path) -> Exception:
    where = f"{target.parent}; set SPARKINFER_CACHE to a folder with room that you may write"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"No space left for the model in {where}.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionDenied(f"No right to write the model cache {where}.")
    return error
