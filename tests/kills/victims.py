"""Whom a kill meets, and the blow itself."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass

from sparkinfer.host.journal import read_journal
from sparkinfer.host.place import EngineFolder
from tests.kills.application import Application
from tests.kills.cluster import Standalone
from tests.kills.models import Model
from tests.support.executors import descendants, kill
from tests.support.leftovers import EngineProcess, engines


@dataclass(frozen=True)
class Blow:
    """What was done.

    Attributes:
        time: of it.
        pids: who was killed (or stopped).
        in_flight: rows that engines were running just then, by their journals.
    """

    time: float
    pids: tuple[int, ...]
    in_flight: int


def strike(
    kind: str, application: Application, cluster: Standalone | None, model: Model, *, draw: random.Random
) -> Blow:
    """Kill one of a kind.

    Raises:
        LookupError: there is none.
    """
    below = application.look()
    if cluster is not None:
        for worker in cluster.workers().values():
            below |= descendants(worker)
    running = working_engines(model)
    pids = _victims(kind, application, cluster, below, running)
    if not pids:
        raise LookupError(f"no {kind} to kill")
    in_flight = sum(running.values())
    if kind == "job":
        everyone = [*below, application.process.pid, *(engine.pid for engine in running)]
        for engine in running:  # stopped first, so that none gets on meanwhile
            os.kill(engine.pid, signal.SIGSTOP)
        moment = time.time()
        for pid in everyone:
            kill(pid)
        return Blow(moment, tuple(everyone), in_flight)
    pid = draw.choice(pids)
    os.kill(pid, signal.SIGSTOP if kind == "engine stopped" else signal.SIGKILL)
    return Blow(time.time(), (pid,), in_flight)


def working_engines(model: Model) -> dict[EngineProcess, int]:
    """The model's living engines -> rows of the batch that each is running."""
    found, pids = {}, model.engine_pids()
    for engine in engines():
        if engine.pid in pids:
            record = read_journal(EngineFolder(engine.folder).journal)
            found[engine] = 0 if record is None else len(record.running)
    return found


def _victims(
    kind: str,
    application: Application,
    cluster: Standalone | None,
    below: dict[int, str],
    running: dict[EngineProcess, int],
) -> list[int]:
    python = {pid for pid, command in below.items() if "pyspark.daemon" in command}
    if kind.startswith("engine"):
        return [engine.pid for engine, rows in running.items() if rows] or [engine.pid for engine in running]
    if kind == "worker":
        return sorted(pid for pid in python if parent_of(pid) in python)
    if kind == "daemon":
        return sorted(pid for pid in python if parent_of(pid) not in python)
    if kind == "executor":
        return sorted(pid for pid, command in below.items() if "CoarseGrainedExecutorBackend" in command)
    if kind == "standalone worker":
        return [] if cluster is None else sorted(cluster.workers().values())
    return application.jvm() if kind == "driver JVM" else [application.process.pid]


def parent_of(pid: int) -> int:
    """The parent's pid, 0 where the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0
