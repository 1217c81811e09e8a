"""What deaths of the engine teach: which rows are suspect, which one is the culprit, and when to give up.

The rows of the batch that was running at a death are suspects. They run again apart from all others, half of them at a
time; a half that kills the engine again is the new, smaller set of suspects, and a row that does it alone is quarantined
and answered with POISON_ROW. So a poison row among n costs about log2(n) restarts, and the others finish.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sparkinfer.host.journal import JournalRecord


@dataclass(slots=True)
class Deaths:
    """Kept in the engine's folder from one process to the next; written only by the holder of the lock.

    Attributes:
        suspects: hex digests of rows that may have killed the engine, in the order of their batch.
        poisoned: hex digests of rows that killed it alone.
        total: deaths since the first start.
        barren: deaths in a row without progress (no row finished, suspects not narrowed).
        killed_loads: starts in a row that ended before the engine was ready.
        poisoned_in_a_row: culprits found since a row last finished; when everything kills, no row is to blame.
    """

    suspects: list[str] = field(default_factory=list)
    poisoned: list[str] = field(default_factory=list)
    total: int = 0
    barren: int = 0
    killed_loads: int = 0
    poisoned_in_a_row: int = 0

    @classmethod
    def load(cls, path: Path) -> Deaths:
        """What the file says; a fresh record where there is none or it cannot be read."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return cls()

    def save(self, path: Path) -> None:
        """Write it whole or not at all."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)), encoding="utf-8")
        fresh.replace(path)

    def record(self, left: JournalRecord) -> None:
        """Take in one death: what the dead process was running."""
        self.total += 1
        running = [digest.hex() for digest in left.running]
        if left.finished:
            self.poisoned_in_a_row = 0
        if left.on_trial and len(running) == 1:
            self._condemn(running[0])
            return
        narrowed = bool(self.suspects) and set(running) < set(self.suspects)
        self.barren = 0 if narrowed or left.finished else self.barren + 1
        if running:
            self.suspects = running

    def record_start(self) -> None:
        """Take in the death of a process that was not ready yet: nobody is suspect."""
        self.total += 1
        self.killed_loads += 1

    def is_hopeless(self, max_deaths: int) -> bool:
        """Whether starting again would only repeat it."""
        return max(self.barren, self.killed_loads) >= max_deaths or self.poisoned_in_a_row > max_deaths

    def forgive(self) -> None:
        """Begin to count anew: everybody who waited has been told. Where every row killed, none of them was to blame."""
        self.poisoned = self.poisoned[: len(self.poisoned) - self.poisoned_in_a_row]
        self.barren = 0
        self.killed_loads = 0
        self.poisoned_in_a_row = 0

    def _condemn(self, digest: str) -> None:
        self.poisoned.append(digest)
        self.suspects = []
        self.barren = 0
        self.poisoned_in_a_row += 1


class Trial:
    """Decides which waiting rows may run now while suspects are left. Not thread-safe; the engine's thread owns it."""

    def __init__(self, suspects: Iterable[str]) -> None:
        self._suspects = dict.fromkeys(bytes.fromhex(digest) for digest in suspects)
        self._running: set[bytes] = set()

    @property
    def is_on(self) -> bool:
        """Whether suspects run now, apart from all other rows."""
        return bool(self._running)

    def admit(self, waiting: Iterable[bytes], *, is_idle: bool) -> set[bytes] | None:
        """The digests that may enter the engine now; None: all of them.

        Args:
            waiting: digests of the rows that wait for the engine.
            is_idle: whether the engine has no work; suspects wait for that.
        """
        if self._running:
            return set()
        present = self._present(waiting)
        if not present:
            return None
        if not is_idle:
            return set()
        half = present[: max(1, len(present) // 2)]
        self._running = set(half)
        return set(half)

    def settle(self, digest: bytes) -> None:
        """A row is done (or its client is gone): it is no suspect any more."""
        self._suspects.pop(digest, None)
        self._running.discard(digest)

    def _present(self, waiting: Iterable[bytes]) -> list[bytes]:
        if not self._suspects:
            return []
        here = set(waiting)
        return [digest for digest in self._suspects if digest in here]
