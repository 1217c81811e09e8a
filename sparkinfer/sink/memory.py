"""A result table in this process: the public stand-in for tests and dry runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkinfer.errors import CommitConflict
from sparkinfer.sink.base import Commit, PastCommit, StagedRows, TableColumn, TableFacts, last_sequences

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class MemorySink:
    """A table in this process: the public stand-in for tests and dry runs; compare-and-set as Delta has it.

    Args:
        table: its name, for messages.
    """

    writer = "memory"

    def __init__(self, table: str = "memory") -> None:
        self.table = table
        self.commits: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._columns: tuple[TableColumn, ...] | None = None
        self._properties: dict[str, str] = {}
        self._versions: list[pa.Table | None] = []

    def facts(self) -> TableFacts | None:
        """The table now."""
        with self._lock:
            if self._columns is None:
                return None
            history = list(enumerate(self.commits))
            return TableFacts(
                version=len(self._versions) - 1,
                table_id="memory",
                columns=self._columns,
                properties=dict(self._properties),
                sequences=last_sequences(history),
                history=tuple(PastCommit(version=v, operation="WRITE", metadata=m) for v, m in reversed(history)),
            )

    def create(self, columns: Sequence[TableColumn], properties: Mapping[str, str]) -> None:
        """Make the empty table."""
        with self._lock:
            if self._columns is None:
                self._columns, self._properties = tuple(columns), dict(properties)
                self._versions.append(None)
                self.commits.append({})

    def rows(self, version: int) -> DataFrame:
        """The table as a DataFrame of the active session."""
        from pyspark.sql import SparkSession

        session = SparkSession.active()
        table = self._versions[version]
        if table is None or table.num_rows == 0:
            ddl = ", ".join(f"`{c.name}` {c.ddl}" for c in self._columns or ())
            return session.createDataFrame([], ddl)
        return session.createDataFrame(table)

    def to_arrow(self) -> pa.Table:
        """The newest rows."""
        import pyarrow as pa

        return self._versions[-1] if self._versions[-1] is not None else pa.table({})

    def append(self, staged: StagedRows, commit: Commit) -> None:
        """Add rows."""
        self._write(staged, (), commit)

    def merge(
        self, staged: StagedRows, on: Sequence[str], commit: Commit, *, within: Sequence[int] | None = None
    ) -> None:
        """Replace and add rows; there are no files to leave out."""
        self._write(staged, on, commit)

    def remove(self, staged: StagedRows, on: Sequence[str], metadata: Mapping[str, Any]) -> None:
        """Take rows out."""
        import pyarrow.parquet as pq

        gone = pq.read_table(staged.path, columns=list(on))
        with self._lock:
            self._versions.append(_without(self._versions[-1], gone, on))
            self.commits.append({**metadata, "app": "sparkinfer"})

    def find(self, commit: Commit) -> int | None:
        """The version of this commit."""
        with self._lock:
            return next((v for v, metadata in enumerate(self.commits) if commit.is_own(metadata)), None)

    def _write(self, staged: StagedRows, on: Sequence[str], commit: Commit) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        new = pq.read_table(staged.path, columns=list(staged.columns))
        with self._lock:
            last = last_sequences(list(enumerate(self.commits))).get(commit.bucket, 0)
            if commit.sequence <= last:
                raise CommitConflict(f"Bucket {commit.bucket} of {self.table} was committed by another writer first.")
            old = self._versions[-1]
            if on:
                old = _without(old, new, on)
            self._versions.append(new if old is None else pa.concat_tables([old, new.select(old.column_names)]))
            self.commits.append(json.loads(commit.user_metadata()))


def _without(table: pa.Table | None, gone: pa.Table, on: Sequence[str]) -> pa.Table | None:
    """The rows of a table that are equal to none of the others in ``on``."""
    import pyarrow as pa

    if table is None:
        return None
    keys = {tuple(row[c] for c in on) for row in gone.select(list(on)).to_pylist()}
    keep = [tuple(row[c] for c in on) not in keys for row in table.select(list(on)).to_pylist()]
    return table.filter(pa.array(keep, pa.bool_()))
