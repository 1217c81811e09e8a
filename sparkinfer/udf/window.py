"""How many rows a task may have between reading and yielding: few at first, so that a reader who wants five rows pays for few.

``limit``, ``show`` and ``head`` above a filter stop reading in the middle; whatever was asked for by then is paid. Nothing tells
a worker that its reader has stopped, but its next write. So the window grows with what is seen:

1. ``FIRST_ROWS`` before anything has come back;
2. ``CAUTIOUS_ROWS`` in all once the engine has answered one;
3. without a cautious limit once the reader has had ``patience_s`` to hang up after its first rows (or, where the first row is
   a long one, ``LONG_PATIENCE_S`` after the first answer); the window doubles with each yield up to ``MAX_ROWS``.

Bytes bound it too, so that a partition of large texts is not held in memory. The first row always fits.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_ROWS = 16
CAUTIOUS_ROWS = 48
MAX_ROWS = 2048
MAX_BYTES = 32 * 1024 * 1024
PATIENCE_S = 1.0  # Spark needs about 0.3 s to end a task whose limit is met, more on a busy machine
LONG_PATIENCE_S = 10.0


class Window:
    """Counts the rows that are open (asked for and not yet yielded) and says how many more may be.

    Args:
        reads_all: the reader is known to take every row; then the window starts at its full size.
        patience_s: how long the reader may take to hang up after its first rows.
        clock: seconds that never go back.
    """

    def __init__(
        self, *, reads_all: bool, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._is_cautious = not reads_all
        self._limit = CAUTIOUS_ROWS if self._is_cautious else MAX_ROWS
        self._opened = 0
        self._open_rows = 0
        self._open_bytes = 0
        self._first_answer: float | None = None
        self._first_yield: float | None = None

    @property
    def is_cautious(self) -> bool:
        """Whether the reader may still hang up after a few rows; then rows are yielded one by one as they are ready."""
        if self._is_cautious and self._has_waited():
            self._is_cautious = False
        return self._is_cautious

    def room(self) -> int:
        """Rows that may be opened now."""
        if self._open_rows and self._open_bytes >= MAX_BYTES:
            return 0
        if self.is_cautious:
            allowed = FIRST_ROWS if self._first_answer is None else CAUTIOUS_ROWS
            return max(0, allowed - self._opened)
        return max(0, self._limit - self._open_rows)

    @property
    def room_bytes(self) -> int:
        """Bytes that the rows opened next may take together; a row that is larger by itself goes alone."""
        return max(1, MAX_BYTES - self._open_bytes)

    def opened(self, rows: int, size: int, *, requests: int) -> None:
        """Rows were read; ``size`` is their text in bytes, ``requests`` are those that need the engine."""
        self._opened += requests
        self._open_rows += rows
        self._open_bytes += size

    def answered(self) -> None:
        """The engine has answered at least one row."""
        if self._first_answer is None:
            self._first_answer = self._clock()

    def yielded(self, rows: int, size: int) -> None:
        """Rows went to the reader, and the reader came back for more."""
        self._open_rows -= rows
        self._open_bytes -= size
        if self._first_yield is None:
            self._first_yield = self._clock()
        if not self.is_cautious:
            self._limit = min(MAX_ROWS, self._limit * 2)

    def _has_waited(self) -> bool:
        now = self._clock()
        after_yield = self._first_yield is not None and now - self._first_yield >= self._patience_s
        after_answer = self._first_answer is not None and now - self._first_answer >= LONG_PATIENCE_S
        return after_yield or after_answer
