"""Exactly one engine process per engine key on an executor, whoever asks first and however many ask at once.

The engine itself holds a lock file for its whole life. A client that gets the lock knows that there is none, starts it and
hands the lock's descriptor over; everybody else reads the status file until the engine is ready or has failed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import time
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path

from sparkinfer.config.specs import EngineSpec
from sparkinfer.errors import EngineStartFailed, EngineTimeout
from sparkinfer.host.frames import PROTOCOL
from sparkinfer.host.lineage import ProcessMark, mark_of
from sparkinfer.host.place import EngineFolder, Place, engine_folder, log_folder, written_locally
from sparkinfer.host.process import Recipe, save_owner, start_process
from sparkinfer.host.restart import Deaths
from sparkinfer.host.status import FAILED, READY, STARTING, Status, log_tail
from sparkinfer.model.devices import device_set

_LOG = logging.getLogger(__name__)
_POLL = 0.02


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that is ready to be connected to."""

    mark: ProcessMark
    socket: Path
    token: str
    log: str


@dataclass(slots=True)
class _Wait:
    """One client's wait: since when, and which starts it has watched."""

    since: float
    seen: set[str] = field(default_factory=set)
    silent_since: float | None = None

    def hear_nothing(self, folder: EngineFolder, timeout: float) -> None:
        """Somebody holds the lock and its files say nothing; a running engine writes them anew.

        Raises:
            EngineTimeout: that has been so for too long.
        """
        now = time.monotonic()
        self.silent_since = self.silent_since or now
        if now - self.silent_since > timeout:
            raise EngineTimeout(
                f"An engine of this executor holds {folder.lock}, and for {timeout:.0f} s its files there have not said where it "
                "listens; something has removed them. End its process, or restart the executor."
            )

    def concerns(self, status: Status) -> bool:
        """Whether that start's failure is this client's business, not an old one."""
        return status.attempt in self.seen or status.time >= self.since


def elect(place: Place, spec: EngineSpec, *, since: float | None = None) -> RunningEngine:
    """The executor's engine for this spec, started if there is none.

    Args:
        place: this executor.
        spec: which engine.
        since: monotonic seconds; failures of starts from then on are raised instead of trying again.

    Raises:
        EngineStartFailed: it was killed while it started, however often it was started; a ModelError's own class where it
            said itself why it cannot start.
        EngineDied: it died too often without getting on.
        EngineTimeout: it was not ready within ``settings.start_timeout_s``.
        DiskFull: no space is left in the executor's local folder.
    """
    key = engine_key(place, spec)
    wait = _Wait(time.monotonic() if since is None else since)
    while True:
        try:
            with written_locally(place):
                engine = _look(place, spec, key, wait)
        except FileNotFoundError:  # an engine that ends has just removed its files
            engine = None
        if engine is not None:
            return engine
        time.sleep(_POLL)


def _look(place: Place, spec: EngineSpec, key: str, wait: _Wait) -> RunningEngine | None:
    """One look: the engine if it is ready; starts it if there is none."""
    folder = engine_folder(place, key)
    save_owner(folder, place)
    lock = try_lock(folder.lock)
    status = Status.load(folder.status)
    if lock is not None:
        try:
            if (engine := _running(folder, status)) is not None:
                return engine  # somebody has removed the lock's file under it
            _raise_failure(wait, status)
            if status is not None and status.state == STARTING:
                _take_in_start_death(folder, status, spec.settings.max_deaths)
            wait.seen.add(_start(place, folder, spec, key, lock))
        finally:
            os.close(lock)
        return None
    if (engine := _running(folder, status)) is not None:
        return engine
    if status is None or status.state == READY:
        wait.hear_nothing(folder, spec.settings.start_timeout_s)
        return None
    wait.silent_since = None
    _watch(wait, folder, status, spec.settings.start_timeout_s)
    return None


def _running(folder: EngineFolder, status: Status | None) -> RunningEngine | None:
    """The engine that says it is ready, lives, and has left its token."""
    if status is None or status.state != READY or not status.mark.is_alive():
        return None
    token = folder.read_token()
    return None if token is None else RunningEngine(status.mark, folder.socket(), token, status.log)


def engine_key(place: Place, spec: EngineSpec) -> str:
    """SHA-256 of executor, model, device set, protocol and library versions.

    Raises:
        DeviceNotFound: a device is asked for that this executor does not have.
    """
    devices = device_set(spec.settings.device, task_addresses=spec.task_gpus, count=spec.settings.tensor_parallel)
    parts = (place.identity, *spec.identity, devices.key, str(PROTOCOL), _library_versions())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def try_lock(path: Path) -> int | None:
    """The lock's descriptor, or None where somebody holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(descriptor).st_ino:  # else its last holder has just removed it
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _raise_failure(wait: _Wait, status: Status | None) -> None:
    """With the lock in hand nobody is starting: say how a start that this client waited for has failed."""
    if status is not None and status.state == FAILED and wait.concerns(status):
        raise status.error()


def _take_in_start_death(folder: EngineFolder, status: Status, max_deaths: int) -> None:
    """The last start was killed before it could say anything (the kernel's out-of-memory killer does so): count it.

    Raises:
        EngineStartFailed: that was one too many; everybody else who waits for it is told by the status file.
    """
    deaths = Deaths.load(folder.deaths)
    deaths.record_start()
    hopeless = deaths.is_hopeless(max_deaths)
    if hopeless:
        deaths.forgive()
    deaths.save(folder.deaths)
    if not hopeless:
        _LOG.warning("The engine was killed while it started; it is started again.")
        return
    error = EngineStartFailed(
        f"The engine process ended {max_deaths} times before it was ready and left no error of its own, as when it is killed for "
        "want of memory; look at dmesg, raise spark.executor.memoryOverhead or take a smaller model; the end of its log "
        f"{status.log}: "
        f"{log_tail(status.log) or '(empty)'}"
    )
    status.failed(error, time=time.monotonic()).save(folder.status)
    raise error


def _start(place: Place, folder: EngineFolder, spec: EngineSpec, key: str, lock: int) -> str:
    attempt = secrets.token_hex(8)
    log = str(log_folder(place, folder) / f"sparkinfer-engine-{key[:12]}.log")
    folder.save_token(secrets.token_hex(32))
    Status(attempt=attempt, state=STARTING, time=time.monotonic(), log=log).save(folder.status)
    devices = device_set(spec.settings.device, task_addresses=spec.task_gpus, count=spec.settings.tensor_parallel)
    recipe = Recipe(
        # the process sees its own devices only, and counts them anew
        spec=replace(spec, settings=replace(spec.settings, device=devices.kind), task_gpus=()),
        visible_devices=devices.visible,
        key=key,
        attempt=attempt,
        log=log,
        place=str(place.folder),
        socket=str(folder.socket()),
        block_manager=str(place.block_manager or ""),
        leaves_memo=place.block_manager is not None,
    )
    start_process(folder, recipe, lock)
    return attempt


def _watch(wait: _Wait, folder: EngineFolder, status: Status, timeout: float) -> None:
    """Remember a start that is under way; end one that takes too long, for everybody who waits for it."""
    if status.state != STARTING:
        return
    wait.seen.add(status.attempt)
    if time.monotonic() - status.time <= timeout:
        return
    error = EngineTimeout(
        f"The engine was not ready within {timeout:.0f} s; raise start_timeout_s or look at its log {status.log}: "
        f"{log_tail(status.log) or '(empty)'}"
    )
    mark = mark_of(status.pid) if status.pid else _started_for(folder)
    if mark is not None and (not status.pid or mark == status.mark):
        status.failed(error, time=time.monotonic()).save(folder.status)
        mark.kill()
    raise error


def _started_for(folder: EngineFolder) -> ProcessMark | None:
    """The engine process of a folder by its command line: one that hangs in its first imports has not said its pid yet."""
    wanted = os.fsencode(folder.path)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes().split(b"\0")
            if b"sparkinfer.host.main" in command and wanted in command:
                return mark_of(int(path.parent.name))
    return None


@cache
def _library_versions() -> str:
    names = ("sparkinfer", "torch", "transformers", "tokenizers", "numba")
    return ",".join(f"{name}={_version(name)}" for name in names)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
