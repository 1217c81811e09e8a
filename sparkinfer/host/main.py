"""The engine process: ``python -m sparkinfer.host.main FOLDER LOCK``. Started by :mod:`sparkinfer.host.election` only."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from sparkinfer.errors import EngineDied, EngineStartFailed, HostError, SparkInferError
from sparkinfer.host.journal import Journal, read_journal
from sparkinfer.host.ledger import Ledger
from sparkinfer.host.lineage import own_mark
from sparkinfer.host.loading import local_folder
from sparkinfer.host.memo import Memo
from sparkinfer.host.place import EngineFolder
from sparkinfer.host.process import Recipe, load_owner, start_guard
from sparkinfer.host.progress import ProgressFiles
from sparkinfer.host.restart import Deaths, Trial
from sparkinfer.host.retry import Backoff
from sparkinfer.host.room import load_beside_others
from sparkinfer.host.segments import Segments
from sparkinfer.host.server import Server
from sparkinfer.host.service import Service
from sparkinfer.host.status import READY, STARTING, Status, log_tail
from sparkinfer.host.watch import End, LifeWatch

_LOG = logging.getLogger("sparkinfer.engine")
_TICK = 0.2
#: Seconds for an orderly end; a thread that is stuck does not keep the process longer.
_GRACE = 3.0
#: Seconds that the socket's file is missing, alone, until it is made again: Spark may just be removing everything.
_LOST = 2.0
#: How the process ends when the engine itself raised: the same as a death, so that its rows are run again.
_ENGINE_RAISED = 70


@dataclass(slots=True)
class _Parts:
    server: Server
    service: Service


def main(arguments: list[str]) -> int:
    """Run the engine of a folder until it is not needed any more."""
    folder, lock = EngineFolder(Path(arguments[0])), int(arguments[1])
    os.set_inheritable(lock, False)
    recipe = Recipe.load(folder.recipe)
    faulthandler.enable()
    tail = log_tail(recipe.log)  # of the process before this one
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    mark = own_mark()
    status = Status(
        attempt=recipe.attempt,
        state=STARTING,
        time=time.monotonic(),
        log=recipe.log,
        pid=mark.pid,
        started=mark.started,
    )
    status.save(folder.status)
    tempfile.tempdir = str(folder.path)  # what it leaves goes with its folder
    _forget_temporary(folder)
    start_guard(folder, recipe)
    watch = _watch(folder, recipe)
    _end_early_with(watch, folder, recipe)
    try:
        parts = _start(folder, recipe, tail)
    except Exception as error:
        _LOG.error("The engine did not start.\n%s", traceback.format_exc())
        status.failed(_as_error(error, recipe.log), time=time.monotonic()).save(folder.status)
        return 1
    ready = replace(status, state=READY, time=time.monotonic())
    ready.save(folder.status)
    end = _wait_for_end(watch, folder, parts.server, ready)
    _LOG.info("Ends: %s.", end.reason)
    threading.Timer(_GRACE, os._exit, (0,)).start()
    _clean(folder, recipe, keeps_memo=recipe.leaves_memo and not end.executor_is_gone)
    parts.service.stop()
    return 0


def _start(folder: EngineFolder, recipe: Recipe, tail: str) -> _Parts:
    deaths = _take_in_death(folder, recipe, tail)
    spec = recipe.spec
    began = time.monotonic()
    engine, tokenizer = load_beside_others(spec, local_folder(spec), Path(recipe.place), own_mark())
    _LOG.info("Engine %s for %s ready after %.1f s.", engine.info.label, spec.model.name, time.monotonic() - began)
    service = Service(
        engine,
        tokenizer,
        memo=Memo(folder.memo, memory_bytes=spec.settings.memo_bytes) if spec.settings.memo else None,
        segments=Segments(f"{recipe.key[:12]}-{recipe.attempt}", spec.model),
        backoff=Backoff(spec.settings.retries, spec.settings.retry_base_s),
        journal=Journal(folder.journal),
        trial=Trial(deaths.suspects),
        poisoned=[bytes.fromhex(digest) for digest in deaths.poisoned],
        progress=ProgressFiles(f"{recipe.key[:12]}-{os.getpid()}"),
        on_failure=_die_with,
        log_name=recipe.log,
    )
    token = folder.token.read_text(encoding="ascii")
    server = Server(service, Path(recipe.socket), token, settings=spec.settings)
    service.start()
    server.start()
    if deaths.killed_loads:
        replace(deaths, killed_loads=0).save(folder.deaths)
    return _Parts(server, service)


def _take_in_death(folder: EngineFolder, recipe: Recipe, tail: str) -> Deaths:
    """Learn from a journal that was left behind.

    Raises:
        EngineDied: the engine died too often without getting on.
    """
    deaths = Deaths.load(folder.deaths)
    left = read_journal(folder.journal)
    if left is None:
        return deaths
    deaths.record(left)
    folder.journal.unlink(missing_ok=True)
    _LOG.warning(
        "The engine before this one died with %d rows running; %d suspects, %d poison rows, %d deaths in all.",
        len(left.running),
        len(deaths.suspects),
        len(deaths.poisoned),
        deaths.total,
    )
    hopeless = deaths.is_hopeless(recipe.spec.settings.max_deaths)
    if hopeless:
        deaths.forgive()
    deaths.save(folder.deaths)
    if hopeless:
        raise EngineDied(
            f"The engine died {deaths.total} times, the last {recipe.spec.settings.max_deaths} without getting on, and is not "
            f"started again; the end of its log {recipe.log}: {tail or '(empty)'}"
        )
    return deaths


def _watch(folder: EngineFolder, recipe: Recipe) -> LifeWatch:
    block_manager = Path(recipe.block_manager) if recipe.block_manager else None
    watch = LifeWatch(
        block_manager=block_manager, folder=folder.path, idle_timeout_s=recipe.spec.settings.idle_timeout_s
    )
    watch.watch(load_owner(folder))
    return watch


def _end_early_with(watch: LifeWatch, folder: EngineFolder, recipe: Recipe) -> None:
    """Loading can take minutes; the executor's end ends it too."""

    def look() -> None:
        while Status.load(folder.status) is None or _is_starting(folder):
            if (end := watch.end(idle_s=0.0)) is not None:
                _LOG.info("Ends while it starts: %s.", end.reason)
                _clean(folder, recipe, keeps_memo=False)
                os._exit(0)
            time.sleep(_TICK)

    threading.Thread(target=look, name="watch-start", daemon=True).start()


def _is_starting(folder: EngineFolder) -> bool:
    status = Status.load(folder.status)
    return status is not None and status.state == STARTING


def _wait_for_end(watch: LifeWatch, folder: EngineFolder, server: Server, ready: Status) -> End:
    told = threading.Event()

    def leave(_signal: int, _frame: FrameType | None) -> None:
        told.set()

    signal.signal(signal.SIGTERM, leave)
    lost = 0
    while not told.wait(_TICK):
        if not watch.has_owner:
            watch.watch(load_owner(folder))
        if server.is_dismissed:
            return End("another engine needs the memory", executor_is_gone=False)
        if (end := watch.end(server.idle_s)) is not None:
            return end
        lost = 0 if _is_found(server, folder) or not folder.lock.exists() else lost + 1
        if lost * _TICK > _LOST:
            lost = 0
            _mend(server, folder, ready)
    return End("SIGTERM", executor_is_gone=False)


def _is_found(server: Server, folder: EngineFolder) -> bool:
    """Whether clients can find this engine: its socket, its token, and what says that it is ready."""
    return server.is_reachable and folder.read_token() == server.token and Status.load(folder.status) is not None


def _mend(server: Server, folder: EngineFolder, ready: Status) -> None:
    """Make anew what is gone, alone: where Spark removes everything, the lock's file goes too."""
    try:
        if folder.read_token() != server.token:
            folder.save_token(server.token)
        if Status.load(folder.status) is None:
            ready.save(folder.status)
        if not server.is_reachable:
            folder.socket()  # makes the folder of short names where that is gone
            server.listen_anew()
        _LOG.warning("Files by which clients find this engine were gone from %s and are there again.", folder.path)
    except (OSError, HostError) as error:
        _LOG.warning("Files by which clients find this engine are gone and cannot be made again: %s", error)


def _forget_temporary(folder: EngineFolder) -> None:
    """Folders that this engine, or one that was killed before it, has made for the time of its life."""
    for path in folder.path.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _clean(folder: EngineFolder, recipe: Recipe, *, keeps_memo: bool) -> None:
    """Remove what this engine made; answers and poison rows may wait for the next engine of this executor."""
    socket = Path(recipe.socket)
    socket.unlink(missing_ok=True)
    if keeps_memo:
        _forget_temporary(folder)
        for path in (folder.journal, folder.status, folder.recipe, folder.token, folder.guard):
            path.unlink(missing_ok=True)
        return
    with contextlib.suppress(OSError):  # moved away at once, so that a new engine never meets half of the old one
        shutil.rmtree(folder.path.rename(folder.path.with_name(f"{folder.path.name}.gone-{os.getpid()}")))
    Ledger(Path(recipe.place)).close_if_empty()
    for parent in (Path(recipe.place), socket.parent):
        with contextlib.suppress(OSError):
            parent.rmdir()  # only when this was the last engine


def _die_with(error: Exception) -> None:
    """The engine raised: what it holds cannot be trusted any more."""
    _LOG.error("The engine raised.\n%s", "".join(traceback.format_exception(error)))
    logging.shutdown()
    os._exit(_ENGINE_RAISED)


def _as_error(error: Exception, log: str) -> SparkInferError:
    if isinstance(error, SparkInferError):
        return error
    return EngineStartFailed(f"The engine could not be started: {error!r}; more is in its log {log}.")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    os._exit(code)  # engine threads and libraries' own must not hold the process
