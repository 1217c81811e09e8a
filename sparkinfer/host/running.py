"""The engines that run on an executor, and what they tell about themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkinfer.errors import ProtocolError
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
        token = folder.read_token()
        if token is None:
            continue  # it has just ended
        yield RunningEngine(status.mark, folder.socket(), token, status.log)


def metrics(place: Place | None = None) -> list[dict[str, float]]:
    """Counters of every running engine of this executor: loads, pid, rows, requests, memo_hits, twins, clients, tokens ..."""
    counters = []
    for engine in running_engines((place or here()).folder):
        answer = _ask(engine, "stats", wanted="stats")
        if answer is not None:
            counters.append(answer)
    return counters


def dismiss(engine: RunningEngine) -> bool:
    """Ask an engine without clients to leave; whether it does."""
    return bool(_ask(engine, "leave", wanted="leaving"))


def _ask(engine: RunningEngine, purpose: str, *, wanted: str) -> Any:
    """What an engine answers under this name; None where it is gone, silent or will not say."""
    try:
        channel = greet(engine, {"purpose": purpose})
    except ConnectionError:
        return None
    try:
        frame = channel.receive(_TIMEOUT)
        answer = {} if frame is None else frames.decode_control(frame)
    except (ConnectionError, ProtocolError):
        return None
    finally:
        channel.close()
    return answer.get(wanted)  # None where the engine refused
