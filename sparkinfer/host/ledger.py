"""Memory that the engines of one executor have taken: so that two models are not loaded into the room for one.

An engine puts down what it is going to need before it loads; the entry of a process that is gone counts no more.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sparkinfer.errors import InsufficientMemory
from sparkinfer.host.lineage import ProcessMark


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What one engine takes.

    Attributes:
        model: its model's name, for people.
        pid: the engine process.
        started: its start time in clock ticks.
        num_bytes: host memory for weights, KV pool and process.
        is_loaded: whether it has it already; then the system's own figure of free memory knows.
    """

    model: str
    pid: int
    started: int
    num_bytes: int
    is_loaded: bool = False

    def __str__(self) -> str:
        return f"{self.model} ({_mib(self.num_bytes)})"


class Ledger:
    """The ledger of one executor: a file that its engines change one at a time."""

    def __init__(self, place: Path) -> None:
        self._path = place / "memory.json"
        self._lock = place / "memory.lock"

    def reserve(self, wanted: Reservation, *, free_bytes: int) -> None:
        """Put down what an engine is going to load, if it fits beside what others are loading.

        Args:
            wanted: the engine that asks.
            free_bytes: what the system says is free now.

        Raises:
            InsufficientMemory: naming the model and its neighbours.
        """
        with self._entries() as entries:
            others = [entry for entry in entries if entry.pid != wanted.pid]
            free = free_bytes - sum(entry.num_bytes for entry in others if not entry.is_loaded)
            if wanted.num_bytes > free:
                raise InsufficientMemory(
                    f"{wanted.model} needs {_mib(wanted.num_bytes)} and {_mib(max(0, free))} is free"
                    f"{beside(others)}; end the other model's job, use a smaller model or dtype, or raise "
                    "spark.executor.memoryOverhead."
                )
            entries[:] = [*others, wanted]

    def settle(self, loaded: Reservation) -> None:
        """Put down what an engine really took."""
        with self._entries() as entries:
            entries[:] = [*(entry for entry in entries if entry.pid != loaded.pid), loaded]

    def release(self, pid: int) -> None:
        """An engine gives its memory back."""
        with self._entries() as entries:
            entries[:] = [entry for entry in entries if entry.pid != pid]

    def others(self, pid: int) -> list[Reservation]:
        """What the other engines of this executor take."""
        with self._entries() as entries:
            return [entry for entry in entries if entry.pid != pid]

    def close_if_empty(self) -> None:
        """Remove the ledger where no other engine is left; called by an engine that ends."""
        with contextlib.suppress(FileNotFoundError), self._locked():  # the folder may be gone
            if all(entry.pid == os.getpid() for entry in self._living()):
                self._path.unlink(missing_ok=True)
                self._lock.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _entries(self) -> Iterator[list[Reservation]]:
        """The living entries under the lock; what the block makes of them is written back."""
        with self._locked():
            entries = self._living()
            yield entries
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps([asdict(entry) for entry in entries]), encoding="utf-8")
            fresh.replace(self._path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock; one whose file was removed meanwhile is nobody's, and is taken anew."""
        while True:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if self._is_the_lock(descriptor):
                    yield
                    return
            finally:
                os.close(descriptor)

    def _is_the_lock(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._lock.stat())
        except FileNotFoundError:
            return False

    def _living(self) -> list[Reservation]:
        return [entry for entry in self._read() if ProcessMark(entry.pid, entry.started).is_alive()]

    def _read(self) -> list[Reservation]:
        try:
            return [Reservation(**entry) for entry in json.loads(self._path.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError):
            return []


def beside(others: list[Reservation]) -> str:
    """The neighbours as a part of a sentence."""
    return f" beside {', '.join(str(other) for other in others)}" if others else ""


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**2:.0f} MiB"
