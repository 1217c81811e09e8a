"""A partition's way through the engine: read ahead within the window, answer in row order, hold no more than the window."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from sparkinfer.host.client import Client
from sparkinfer.types import Completion, Request
from sparkinfer.udf.nulls import is_skipped, skipped
from sparkinfer.udf.reading import RowReader
from sparkinfer.udf.slices import Slices
from sparkinfer.udf.window import Window

#: How long a worker waits for completions before it looks at its window again.
POLL_S = 0.1
#: Once the reader is known to take every row, yields are at least so large, unless they have waited so long.
FULL_YIELD_ROWS = 64
YIELD_WAIT_S = 0.2


@dataclass(slots=True)
class _OpenRow:
    row: int
    size: int
    completion: Completion | None = field(default=None)


class RowStream:
    """Answers the rows of one partition.

    Args:
        reader: reads the argument columns.
        connect: called when the first row needs the engine, never before: an empty partition starts none.
        window: how many rows may be open.
        skip_blank: rows of blanks need no engine either.
    """

    def __init__(self, *, reader: RowReader, connect: Callable[[], Client], window: Window, skip_blank: bool) -> None:
        self._reader = reader
        self._connect = connect
        self._window = window
        self._skip_blank = skip_blank
        self._client: Client | None = None
        self._queue: deque[_OpenRow] = deque()
        self._waiting: dict[int, _OpenRow] = {}
        self._next_row = 0
        self._last_yield = time.monotonic()

    def answer(self, slices: Slices) -> Generator[list[Completion], None, None]:
        """Completions in row order, as many as rows; never more than were read.

        Raises:
            WrongColumnType: a column without canonical text, before an engine is started.
            HostError: what the client could not mend.
        """
        try:
            while not (slices.is_exhausted and not self._queue):
                self._read(slices)
                ready = self._ready()
                if ready:
                    yield [entry.completion for entry in ready if entry.completion is not None]
                    self._window.yielded(len(ready), sum(entry.size for entry in ready))
                    self._last_yield = time.monotonic()
                elif self._waiting:
                    self._collect()
                elif not slices.buffered:
                    slices.fill()  # there may be no more rows; to look costs nothing
                else:
                    time.sleep(POLL_S / 10)  # the reader may be hanging up: see window.py
        finally:
            if self._client is not None:
                self._client.close()

    def _read(self, slices: Slices) -> None:
        """Open rows while there is room; rows that are ready go before a read that may block, and before more is paid for."""
        while not slices.is_exhausted and (room := self._window.room()):
            if self._has_ready() and (self._window.is_cautious or not slices.buffered):
                return
            columns = slices.take(room, max_bytes=self._window.room_bytes)
            if columns is not None:
                self._open(columns)

    def _open(self, columns: Sequence[object]) -> None:
        if self._next_row == 0:
            self._reader.check(columns)
        requests = self._reader.read(columns, self._next_row)
        self._next_row += len(requests)
        asked, total = [], 0
        for request in requests:
            entry = _OpenRow(request.row, _size(request))
            total += entry.size
            self._queue.append(entry)
            if is_skipped(request, skip_blank=self._skip_blank):
                entry.completion = skipped(request)
            else:
                self._waiting[request.row] = entry
                asked.append(request)
        self._window.opened(len(requests), total, requests=len(asked))
        if asked:
            if self._client is None:
                self._client = self._connect()
            self._client.submit(asked)

    def _collect(self) -> None:
        completions = self._client.poll(POLL_S) if self._client is not None else []
        for completion in completions:
            self._waiting.pop(completion.row).completion = completion
        if completions:
            self._window.answered()

    def _has_ready(self) -> bool:
        return bool(self._queue) and self._queue[0].completion is not None

    def _ready(self) -> list[_OpenRow]:
        """The answered rows at the head, or none yet where more of them would make a better batch."""
        if not self._has_ready():
            return []
        count = next((i for i, entry in enumerate(self._queue) if entry.completion is None), len(self._queue))
        is_due = time.monotonic() - self._last_yield >= YIELD_WAIT_S
        if self._waiting and count < FULL_YIELD_ROWS and not is_due and not self._window.is_cautious:
            return []
        return [self._queue.popleft() for _ in range(count)]


def _size(request: Request) -> int:
    """The row's text in bytes, near enough, and what Python needs for it."""
    return 200 + sum(len(value) for value in request.values if value is not None)
