"""Starts the engine process: exec, never fork, in a session of its own, with an environment fit for it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.child import child_environment
from sparkinfer.errors import EngineStartFailed
from sparkinfer.host.lineage import ProcessMark
from sparkinfer.host.place import EngineFolder, Place
from sparkinfer.model.devices import cpu_threads

_LOG = logging.getLogger(__name__)
SPINS = "10000"
"""Turns that a waiting thread of OpenMP makes before it sleeps, some tenth of a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What the process needs to know; handed over as a 0600 file, not in its arguments.

    Attributes:
        spec: which engine.
        key: engine key, full length.
        attempt: see :class:`Status`.
        log: the log file.
        place: the executor's folder, shared with its other engines.
        socket: where to listen.
        visible_devices: the GPUs it may see, as CUDA names them; empty hides them all.
        block_manager: Spark's folder to watch, or empty.
        leaves_memo: whether somebody else removes the folder at the end, so that the memo may wait for the next engine.
    """

    spec: EngineSpec
    key: str
    attempt: str
    log: str
    place: str
    socket: str
    visible_devices: str
    block_manager: str
    leaves_memo: bool

    def save(self, path: Path) -> None:
        """Write it for this user's eyes only."""
        text = json.dumps({**asdict(self), "spec": self.spec.to_json()})
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)

    @classmethod
    def load(cls, path: Path) -> Recipe:
        """Read it."""
        raw = json.loads(path.read_text(encoding="utf-8"))
        raw["spec"] = EngineSpec.from_json(raw["spec"])
        return cls(**raw)


def save_owner(folder: EngineFolder, place: Place) -> None:
    """Put down the executor's JVM, once: the first worker that descends from it knows it."""
    if place.owner is not None and not folder.owner.exists():
        fresh = folder.path / f"owner.{os.getpid()}"
        fresh.write_text(json.dumps([place.owner.pid, place.owner.started]), encoding="utf-8")
        fresh.replace(folder.owner)


def load_owner(folder: EngineFolder) -> ProcessMark | None:
    """The executor's JVM as some worker has put it down."""
    try:
        pid, started = json.loads(folder.owner.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return ProcessMark(pid, started)


def start_process(folder: EngineFolder, recipe: Recipe, lock: int) -> int:
    """Start the engine; it inherits the lock's descriptor and so holds the lock from now on.

    Returns:
        Its pid.

    Raises:
        EngineStartFailed: no process could be started.
    """
    recipe.save(folder.recipe)
    command = [sys.executable, "-m", "sparkinfer.host.main", str(folder.path), str(lock)]
    try:
        with Path(recipe.log).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                close_fds=True,
                pass_fds=(lock,),
                cwd=folder.path,
                env=engine_environment(recipe.spec.settings.threads, recipe.visible_devices),
                start_new_session=True,
            )
    except OSError as error:
        raise EngineStartFailed(f"The engine process could not be started with {sys.executable}: {error}.") from error
    # Nobody else waits for it: without this it would stay a zombie until this worker ends.
    threading.Thread(target=process.wait, name="reap-engine", daemon=True).start()
    return process.pid


def start_guard(folder: EngineFolder, recipe: Recipe) -> None:
    """What ends this engine process where it cannot do so itself; see :mod:`sparkinfer.host.guard`."""
    # A file of its own: this package may have come as an archive.
    source = resources.files(__package__).joinpath("guard.py").read_text(encoding="utf-8")
    arguments = (str(os.getpid()), str(folder.path), recipe.socket, recipe.block_manager)
    try:
        folder.guard.write_text(source, encoding="utf-8")
        subprocess.Popen([sys.executable, "-I", "-S", str(folder.guard), *arguments], stdin=subprocess.DEVNULL, cwd="/")
    except OSError as error:
        _LOG.warning("No process guards this engine: %s.", error)


def waiting_threads() -> dict[str, str]:
    """How threads of OpenMP wait: torch's and numba's take turns, so that one that spins for long holds up the other, and one that
    sleeps at once has to be woken some hundred times in each step."""
    if "OMP_WAIT_POLICY" in os.environ:  # somebody has decided otherwise
        return {"OMP_WAIT_POLICY": os.environ["OMP_WAIT_POLICY"]}
    return {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", SPINS)}


def engine_environment(threads: int | None, visible_devices: str) -> dict[str, str]:
    """The environment of the engine process: a child's, with its cores and its GPUs."""
    return child_environment(cpu_threads(threads)) | {
        **waiting_threads(),
        "CUDA_VISIBLE_DEVICES": visible_devices,
        "PYTHONUNBUFFERED": "1",
    }
