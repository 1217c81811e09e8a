"""Rows that failed for a reason that may pass: when they are tried again, and where they wait until then.

They wait outside the engine, so the batch goes on without them and takes them in like new rows when they are due.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from sparkinfer.errors import by_code
from sparkinfer.host.work import Work

#: A pause is longer or shorter by up to this share, so that rows which failed together do not come back together.
JITTER = 0.25


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often a row is tried again, and after which pauses: ``base_s``, twice that, four times that ...

    Attributes:
        retries: attempts after the first one; 0: none.
        base_s: seconds before the first of them.
    """

    retries: int
    base_s: float

    def allows(self, code: str, retries: int) -> bool:
        """Whether a row that failed with this code after so many retries is tried once more."""
        return retries < self.retries and by_code(code).transient

    def pause_s(self, key: bytes, retry: int) -> float:
        """Seconds before a row's retry (1, 2, ...). The jitter is drawn from the row's key: the same in every run."""
        draw = hashlib.sha256(key + retry.to_bytes(4, "big")).digest()
        share = int.from_bytes(draw[:8], "big") / 2**64
        return self.base_s * 2.0 ** (retry - 1) * (1.0 + JITTER * (2.0 * share - 1.0))


class RetryQueue:
    """Work that waits for its next attempt, by the time when it is due. Not thread-safe; the engine's thread owns it.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[int, Work] = {}
        self._due: list[tuple[float, int, int]] = []  # when, in which order, request id; dropped ones are left in
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, work: Work, *, pause_s: float) -> None:
        """Let it wait so long."""
        self._waiting[work.request_id] = work
        heapq.heappush(self._due, (self._clock() + pause_s, next(self._order), work.request_id))

    def drop(self, request_id: int) -> bool:
        """Forget work that nobody wants any longer; whether it was here."""
        return self._waiting.pop(request_id, None) is not None

    def take_due(self) -> list[Work]:
        """The work whose pause is over, oldest first."""
        now, due = self._clock(), []
        while self._due and self._due[0][0] <= now:
            work = self._waiting.pop(heapq.heappop(self._due)[2], None)
            if work is not None:
                due.append(work)
        return due

    def next_s(self) -> float | None:
        """Seconds until something is due; None where nothing waits."""
        while self._due and self._due[0][2] not in self._waiting:
            heapq.heappop(self._due)
        return max(0.0, self._due[0][0] - self._clock()) if self._due else None
