"""The engine that a kill's jobs ask, and its own account of what it was asked."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kills.tables import Size

COUNTED = Path(__file__).with_name("counted")


@dataclass(frozen=True)
class Model:
    """A model or a configuration of its own for each kill: no memo of an earlier one knows its answers.

    Attributes:
        kind: ``fake`` or ``real``.
        uri: as ``llm_udf`` takes it.
        log: JSON lines of loads and requests, written by the engine processes.
        size: of the tables.
        batch: sequences of a step.
        max_tokens: of an answer.
        seed: part of the configuration; greedy answers do not depend on it.
        skipped: bytes of the log that belong to earlier kills.
    """

    kind: str
    uri: str
    log: Path
    size: Size
    batch: int
    max_tokens: int
    seed: int = 0
    skipped: int = 0

    def requests(self) -> list[dict[str, Any]]:
        """Requests that engines really executed."""
        return self._events("request", self.skipped)

    def engine_pids(self) -> set[int]:
        """Every engine process that loaded the model, the dead ones too."""
        return {event["pid"] for event in self._events("load", 0)}

    def _events(self, name: str, skipped: int) -> list[dict[str, Any]]:
        """Events of a name, whole lines only."""
        if not self.log.exists():
            return []
        lines = self.log.read_bytes()[skipped:].decode("utf-8", "replace").splitlines()
        return [event for line in lines if line.endswith("}") and (event := json.loads(line))["event"] == name]


def fake_model(folder: Path, *, step_ms: int) -> Model:
    """The counting engine; ``step_ms`` for each batch."""
    log = folder / "engine.log"
    return Model("fake", f"fake:?log={log}&step_ms={step_ms}", log, FAKE, batch=2, max_tokens=16)


def real_model(number: int) -> Model:
    """The sample model behind the real engine; one process serves all kills of an application."""
    log = Path(os.environ["KILLS_LOG"])
    skipped = log.stat().st_size if log.exists() else 0
    return Model("real", "sample", log, REAL, batch=4, max_tokens=6, seed=number, skipped=skipped)


FAKE = Size(rows=60, distinct=48, more_rows=24, more_texts=12)
REAL = Size(rows=30, distinct=24, more_rows=8, more_texts=4)
