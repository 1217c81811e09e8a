"""Where an executor keeps its engines: its identity, its folder, and the names inside.

An executor is known by its block manager's folder (``SPARK_LOCAL_DIRS`` of a Python worker: unique per executor, removed
when it ends). Without one it is the JVM above this process, and outside Spark this process itself.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparkinfer.errors import DiskFull, HostError, SocketPathTooLong
from sparkinfer.host.lineage import ProcessMark, java_ancestor, own_mark

#: Longest path of a Unix socket: ``sun_path`` holds 108 bytes with the closing NUL.
MAX_SOCKET_PATH = 107


@dataclass(frozen=True, slots=True)
class Place:
    """This executor.

    Attributes:
        identity: hash that no other executor on this machine has.
        folder: 0700 folder for everything that its engines write.
        owner: the process whose end ends the engines, or None where only the folder's end can tell.
        block_manager: Spark's folder that vanishes with the executor (or with ``spark.stop()`` in local mode), or None.
    """

    identity: str
    folder: Path
    owner: ProcessMark | None
    block_manager: Path | None


@dataclass(frozen=True, slots=True)
class EngineFolder:
    """The files of one engine under its place."""

    path: Path

    @property
    def lock(self) -> Path:
        """Held by the engine process for its whole life."""
        return self.path / "lock"

    @property
    def guard(self) -> Path:
        """The script of the process that ends the engine where it cannot end itself."""
        return self.path / "guard.py"

    @property
    def status(self) -> Path:
        """How far it is: starting, ready or failed."""
        return self.path / "status.json"

    @property
    def recipe(self) -> Path:
        """What to start, handed over to the process."""
        return self.path / "recipe.json"

    @property
    def token(self) -> Path:
        """What a client must show."""
        return self.path / "token"

    def save_token(self, token: str) -> None:
        """Leave the token for clients of this user only."""
        self.token.unlink(missing_ok=True)
        with os.fdopen(os.open(self.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(token)

    def read_token(self) -> str | None:
        """The token; None where it is gone, or is none."""
        try:
            return self.token.read_text(encoding="ascii") or None
        except (OSError, UnicodeDecodeError):
            return None

    @property
    def journal(self) -> Path:
        """Keys of the rows being run."""
        return self.path / "journal"

    @property
    def deaths(self) -> Path:
        """What earlier deaths taught."""
        return self.path / "deaths.json"

    @property
    def memo(self) -> Path:
        """Answers on disk."""
        return self.path / "memo.sqlite"

    @property
    def owner(self) -> Path:
        """Pid and start time of the executor's JVM."""
        return self.path / "owner.json"

    def socket(self) -> Path:
        """The socket's path: here, or by its hash in a 0700 folder of the system's temporary folder where that is too long.

        Raises:
            SocketPathTooLong: even the temporary folder's name is too long.
        """
        path = self.path / "s"
        if _fits(path):
            return path
        short = _private(Path(tempfile.gettempdir()) / f"sparkinfer-{os.getuid()}")
        path = short / (hashlib.sha256(str(self.path).encode()).hexdigest()[:24] + ".s")
        if not _fits(path):
            raise SocketPathTooLong(
                f"The socket path {path} has more than {MAX_SOCKET_PATH} bytes; set TMPDIR or spark.local.dir to a shorter folder."
            )
        return path


def here() -> Place:
    """The place of this process; its folder is made.

    Raises:
        HostError: the folder belongs to someone else or cannot be made.
    """
    block_manager = _block_manager()
    owner = java_ancestor() if _is_spark_worker() else None
    if block_manager is not None:
        folder = block_manager / "sparkinfer"
        return Place(_digest(str(block_manager)), _private(folder), owner, block_manager)
    mine = owner or own_mark()
    identity = _digest(f"{_boot_id()}:{mine.pid}:{mine.started}")
    folder = _private(Path(tempfile.gettempdir()) / f"sparkinfer-{os.getuid()}-{identity[:16]}")
    if owner is None:
        _remove_at_exit(folder)
    return Place(identity, folder, mine, None)


def log_folder(place: Place, engine: EngineFolder) -> Path:
    """Where the engine's log belongs: the cluster manager's log folder, the executor's work folder, or the engine's own."""
    for name in ("SPARK_LOG_DIR", "LOG_DIRS"):  # LOG_DIRS: YARN containers, a list
        folder = Path(os.environ.get(name, "").split(",")[0])
        if folder.is_absolute() and os.access(folder, os.W_OK):
            return folder
    work = Path.cwd()
    if place.block_manager is not None and (work / "stderr").is_file() and os.access(work, os.W_OK):
        return work  # a standalone executor's folder, where its own logs lie
    return engine.path


def engine_folder(place: Place, key: str) -> EngineFolder:
    """The folder of the engine with this key, made where needed."""
    return EngineFolder(_private(place.folder / key[:16]))


@contextmanager
def written_locally(place: Place) -> Iterator[None]:
    """What the executor's folder refuses, in our words. A file that is missing passes: an engine that ends has removed it.

    Raises:
        DiskFull: no space is left there.
        HostError: it cannot be written for another reason.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else HostError
        raise kind(
            f"The executor's local folder {place.folder} cannot be written: {error.strerror}; no engine can be started there. "
            "Free space, or give the executors another spark.local.dir."
        ) from error


def _is_spark_worker() -> bool:
    """Whether a JVM above this process is an executor; elsewhere it may be an editor or a build server."""
    return any(
        name in os.environ for name in ("SPARK_LOCAL_DIRS", "PYTHON_WORKER_FACTORY_PORT", "SPARK_JOB_ARTIFACT_UUID")
    )


def _block_manager() -> Path | None:
    first = Path(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0])
    return first if first.name.startswith("blockmgr-") and first.is_dir() else None


def _private(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        info = folder.lstat()
    except OSError as error:
        raise HostError(
            f"Cannot make the folder {folder}: {error}. Give the executor a writable spark.local.dir."
        ) from error
    if folder.is_symlink() or info.st_uid != os.getuid():
        raise HostError(f"The folder {folder} belongs to someone else; remove it or set TMPDIR to another place.")
    if info.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


_removed_at_exit: set[tuple[int, Path]] = set()


def _remove_at_exit(folder: Path) -> None:
    """Outside Spark this process is the executor: what its engines leave goes with it."""
    if (os.getpid(), folder) not in _removed_at_exit:
        _removed_at_exit.add((os.getpid(), folder))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
