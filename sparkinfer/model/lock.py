"""One holder a host: a lock beside a cache entry, also on file systems where file locks do not work.

``flock`` is the first choice: the kernel drops it with its owner. Where the file system refuses it (DBFS, some network and
FUSE mounts answer ENOSYS, ENOLCK or EOPNOTSUPP for ever), a file made with O_EXCL names its owner instead. Such a file is
taken over as soon as its owner is gone; an owner on another host counts as gone when it has not touched the file for ten minutes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from sparkinfer.errors import DownloadFailed

#: Seconds without a sign of life after which an owner that cannot be looked up counts as gone.
STALE_AFTER_S = 600.0
_TOUCH_EVERY_S = 30.0
_BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}


@contextlib.contextmanager
def host_lock(path: Path, *, timeout: float = 3600.0) -> Iterator[None]:
    """Hold the lock file ``path``; others on this host wait.

    Args:
        path: the lock file; its folder exists. It stays behind (an unlinked flock file would let two holders in).
        timeout: seconds to wait for the holder.

    Raises:
        DownloadFailed: the holder lives and did not finish in time.
    """
    deadline = time.monotonic() + timeout
    try:
        held = _flock(path, deadline)
    except OSError as error:
        if error.errno in _BUSY or error.errno in (errno.ENOSPC, errno.EROFS):
            raise
        held = None
    if held is None:
        with _owner_file(path.with_name(path.name + ".owner"), deadline):
            yield
        return
    try:
        yield
    finally:
        os.close(held)  # closing the descriptor releases the lock


def _flock(path: Path, deadline: float) -> int:
    """A descriptor that holds the kernel's lock on ``path``; OSError where the file system has none."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        for _ in _pauses(path, deadline):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _BUSY:
                    raise
            else:
                return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    raise AssertionError("_pauses never ends without raising: this is a bug of sparkinfer")


@contextlib.contextmanager
def _owner_file(path: Path, deadline: float) -> Iterator[None]:
    """Hold ``path`` by having created it; touched while held, so that other hosts see that the owner lives."""
    mine = json.dumps({"pid": os.getpid(), "start": _start_time(os.getpid()), "host": this_host()})
    for _ in _pauses(path, deadline):
        if _create(path, mine):
            break
        _remove_if_stale(path)
    done = threading.Event()
    toucher = threading.Thread(target=_touch_until, args=(path, done), name="sparkinfer-lock", daemon=True)
    toucher.start()
    try:
        yield
    finally:
        done.set()
        toucher.join()
        path.unlink(missing_ok=True)


def _create(path: Path, owner: str) -> bool:
    """Make the owner file whole: written aside and linked into place, so that nobody ever reads half of it."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    aside.write_text(owner)
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    except OSError:
        # No hard links here either: plain O_EXCL, whose content may be read half-written (treated as alive).
        return _create_exclusive(path, owner)
    finally:
        aside.unlink(missing_ok=True)
    return True


def _create_exclusive(path: Path, owner: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as file:
        file.write(owner)
    return True


def _remove_if_stale(path: Path) -> None:
    """Take a dead owner's file away; moved aside first, so that of two waiters one removes it."""
    try:
        content = path.read_text()
        age = time.time() - path.stat().st_mtime
    except OSError:
        return
    if not _is_gone(content, age):
        return
    aside = path.with_name(f"{path.name}.stale.{os.getpid()}.{threading.get_ident()}")
    with contextlib.suppress(OSError):
        path.rename(aside)
        if aside.read_text() != content:  # a new owner came between reading and moving: give it back
            with contextlib.suppress(OSError):
                os.link(aside, path)
        aside.unlink(missing_ok=True)


def _is_gone(content: str, age: float) -> bool:
    """Whether the owner named in ``content`` is dead; by its process on this host, by silence elsewhere."""
    try:
        owner = json.loads(content)
        pid, start, host = int(owner["pid"]), owner["start"], owner["host"]
    except (ValueError, KeyError, TypeError):
        return age > STALE_AFTER_S
    if host != this_host():
        return age > STALE_AFTER_S
    return _start_time(pid) != start


def _start_time(pid: int) -> str | None:
    """When the process started, in kernel ticks; None when it is gone. Tells a reused pid from the old one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def this_host() -> str:
    """This machine, this boot and this container: a pid means nothing in another one."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(Path("/proc/self/ns/pid").readlink().name)
    return "/".join(parts)


def _touch_until(path: Path, done: threading.Event) -> None:
    while not done.wait(_TOUCH_EVERY_S):
        with contextlib.suppress(OSError):
            os.utime(path)


def _pauses(path: Path, deadline: float) -> Iterator[None]:
    """Yield at once, then after growing pauses, until the deadline raises."""
    pause = 0.05
    while True:
        yield
        if time.monotonic() > deadline:
            raise DownloadFailed(
                f"Another process has held {path} for too long; if none is downloading a model on this host, "
                f"delete that file and run again."
            )
        time.sleep(pause)
        pause = min(1.0, pause * 1.5)
