"""Arrow batches cut to size: the window asks for n rows, whatever the batches' own length is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

#: The UDF's argument columns, all of one length.
Columns: TypeAlias = Sequence[pa.Array]


class Slices:
    """Reads Spark's batches on demand.

    Args:
        batches: an array a batch where the UDF has one argument, else a tuple of arrays; reading the next may block.
    """

    def __init__(self, batches: Iterator[pa.Array | tuple[pa.Array, ...]]) -> None:
        self._batches = batches
        self._columns: Columns = ()
        self._offset = 0
        self.is_exhausted = False

    @property
    def buffered(self) -> int:
        """Rows that can be had without reading from Spark."""
        return len(self._columns[0]) - self._offset if self._columns else 0

    def take(self, rows: int, *, max_bytes: int) -> Columns | None:
        """At most so many rows and bytes, but at least one row, from one batch; None at the end."""
        self.fill()
        if self.is_exhausted:
            return None
        cut = self._cut(rows)
        while rows > 1 and sum(column.nbytes for column in cut) > max_bytes:
            rows = len(cut[0]) // 2
            cut = self._cut(rows)
        self._offset += len(cut[0])
        return cut

    def _cut(self, rows: int) -> Columns:
        return [column.slice(self._offset, max(1, rows)) for column in self._columns]

    def fill(self) -> None:
        """Read Spark's next batch where nothing is left of the last; empty ones are passed over."""
        while not self.buffered and not self.is_exhausted:
            batch = next(self._batches, None)
            if batch is None:
                self.is_exhausted = True
            else:
                self._columns = batch if isinstance(batch, tuple) else (batch,)
                self._offset = 0
