"""When a job has to end, and the end of its Spark work at that moment.

A deadline ends a job exactly as Ctrl-C does: what the engines have finished stays in staging, buckets that are staged whole
are committed, and the same job goes on later. A commit of answers that has begun is never broken off, and an answers table gets what was
committed; the settling of keys that stand twice may be broken off, and is done by the next run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

from sparkinfer.config.duration import seconds_of
from sparkinfer.errors import DeadlineReached

#: How often the clock is looked at while a job waits, in seconds.
LOOK_S = 0.25
#: Spark work begun in the moment of a cancellation is cancelled again after so long, in seconds.
AGAIN_S = 1.0


class Deadline:
    """A length of time that begins now.

    Args:
        value: ``2h``, ``90m``, ``45s``, seconds as a number; None: no end.
        clock: monotonic seconds.

    Raises:
        InvalidConfig: it cannot be read, or has passed already.
    """

    def __init__(self, value: str | float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._said = value
        self._clock = clock
        self._ends = None if value is None else clock() + seconds_of(value, name="deadline")

    @property
    def has_passed(self) -> bool:
        """Whether the job has to end."""
        return self._ends is not None and self._clock() >= self._ends

    def check(self) -> None:
        """Go on, or not.

        Raises:
            DeadlineReached: the time is over.
        """
        if self.has_passed:
            said = self._said if isinstance(self._said, str) else f"{self._said:g} s"
            raise DeadlineReached(f"The deadline of {said} was reached; run the same job again to go on.")

    def wait_for(self, future: Future[Any]) -> None:
        """Wait until something is done, or the time is over.

        Raises:
            DeadlineReached: the time is over first.
        """
        limit = None if self._ends is None else LOOK_S
        while wait([future], timeout=limit).not_done:
            self.check()

    @contextmanager
    def over(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Spark work that this thread waits for; it is cancelled when the time is over.

        Args:
            cancel: ends the Spark jobs that run now.

        Raises:
            DeadlineReached: the time was over before the block's end.
        """
        self.check()
        if self._ends is None:
            yield
            return
        done = threading.Event()
        watch = threading.Thread(
            target=self._cancel_when_over, args=(done, cancel), name="sparkinfer-deadline", daemon=True
        )
        watch.start()
        try:
            yield
        except Exception:
            self.check()
            raise
        finally:
            done.set()
            watch.join()
        self.check()

    def _cancel_when_over(self, done: threading.Event, cancel: Callable[[], None]) -> None:
        while not done.wait(AGAIN_S if self.has_passed else LOOK_S):
            if self.has_passed:
                cancel()
