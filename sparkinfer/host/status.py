"""How far an engine process is, told in a file: what waiting clients read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sparkinfer.errors import HostError, SparkInferError, by_code
from sparkinfer.host.lineage import ProcessMark

STARTING = "starting"
READY = "ready"
FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One start of an engine.

    Attributes:
        attempt: random name of this start.
        state: starting, ready or failed.
        time: monotonic seconds (of the machine) when this state was reached.
        log: the log file, for people.
        pid: the engine process, 0 until it says so itself.
        started: its start time in clock ticks.
        code: of the error it failed with.
        message: of that error.
    """

    attempt: str
    state: str
    time: float
    log: str
    pid: int = 0
    started: int = 0
    code: str = ""
    message: str = ""

    @classmethod
    def load(cls, path: Path) -> Status | None:
        """What the file says; None where there is none."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def save(self, path: Path) -> None:
        """Write it whole."""
        fresh = path.with_name(f"{path.name}.{self.attempt}")
        fresh.write_text(json.dumps(asdict(self)), encoding="utf-8")
        fresh.replace(path)

    @property
    def mark(self) -> ProcessMark:
        """The engine process."""
        return ProcessMark(self.pid, self.started)

    def failed(self, error: SparkInferError, *, time: float) -> Status:
        """This start with the error it ended in."""
        return replace(self, state=FAILED, code=error.code, message=error.message, time=time)

    def error(self) -> SparkInferError:
        """The error it failed with, rebuilt."""
        cls = by_code(self.code)
        return cls(self.message) if cls is not SparkInferError else HostError(self.message)


def log_tail(path: str, *, num_chars: int = 1500) -> str:
    """The end of a log file, for an error's message; empty where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - num_chars))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""
