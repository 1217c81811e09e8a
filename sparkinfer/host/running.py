"""The engines that run on an executor, and what they tell about themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sparkinfer.host import frames
from sparkinfer.host.client import greet
from sparkinfer.host.election import RunningEngine
from sparkinfer.host.place import EngineFolder, Place, here
from sparkinfer.host.status import READY, Status

_TIMEOUT = 5.0


def running_engines(place: Path) -> Iterator[RunningEngine]:
    """The engines below an executor's folder that are ready."""
    for path in sorted(place.glob("*/status.json")):
        folder = EngineFolder(path.parent)
        status = Status.load(path)
        if status is None or status.state != READY or not status.mark.is_alive():
            continue
        try:
            token = folder.token.read_text(encoding="ascii")
        except OSError:
            continue  # it has just ended
        yield RunningEngine(status.mark, folder.socket(), token, status.log)


def metrics(place: Place | None = None) -> list[dict[str, float]]:
    """Counters of every running engine of this executor: loads, pid, rows, requests, memo_hits, twins, clients, tokens ..."""
    counters = []
    for engine in running_engines((place or here()).folder):
        answer = _ask(engine, "stats")
        if answer is not None:
            counters.append(answer["stats"])
    return counters


def dismiss(engine: RunningEngine) -> bool:
    """Ask an engine without clients to leave; whether it does."""
    answer = _ask(engine, "leave")
    return answer is not None and bool(answer["leaving"])


def _ask(engine: RunningEngine, purpose: str) -> dict[str, dict[str, float]] | None:
    try:
        channel = greet(engine, {"purpose": purpose})
    except ConnectionError:
        return None
    try:
        frame = channel.receive(_TIMEOUT)
        return None if frame is None else frames.decode_control(frame)
    except ConnectionError:
        return None
    finally:
        channel.close()
