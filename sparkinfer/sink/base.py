"""Where result rows go: the protocol and the facts of a table.

A sink takes *staged* rows (a folder of Parquet files), never a lazy DataFrame: writing twice can then never infer twice.
Every commit is a compare-and-set: ``app_id`` names the table and the bucket, ``sequence`` is the bucket's last one in the
snapshot that the rows were computed from, plus one. A sink may drop a sequence that is not higher without a word (Delta
does), so the caller asks :meth:`Sink.find` whether its commit is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Property of a result table: in how many buckets of input_hash its rows are cut.
BUCKETS_PROPERTY = "sparkinfer.buckets"
#: Property of a result table: the layout's version.
VERSION_PROPERTY = "sparkinfer.version"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column of a result table: its name and its Spark SQL type."""

    name: str
    ddl: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCommit:
    """One commit of a table's history: its version, what it did in Delta's word, and our metadata (or nothing)."""

    version: int
    operation: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """A result table at one version.

    Attributes:
        version: the snapshot that everything else here is of.
        table_id: the table's own id; a table that was dropped and made again has another.
        columns: in their order.
        properties: the table's properties.
        sequences: last committed sequence of each bucket; see :meth:`sequence`.
        history: the commits that the log still tells of, newest first.
        oldest: oldest version that the history still tells of; a bucket without a commit in it counts as committed there.
        files: data files of the snapshot; what was made as a copy of another table has some in its first version.
    """

    version: int
    table_id: str
    columns: tuple[TableColumn, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    sequences: Mapping[int, int] = field(default_factory=dict)
    oldest: int = 0
    files: int = 0
    history: tuple[PastCommit, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the table was made without rows and nothing more happened to it."""
        return self.version == 0 and self.files == 0

    def sequence(self, bucket: int) -> int:
        """The bucket's last sequence in this snapshot.

        A sequence is never higher than the version that it was committed with, so the oldest version known bounds what a
        shortened history does not tell.
        """
        return self.sequences.get(bucket, self.oldest)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """Rows ready to be committed: a folder of Parquet files, and which of its columns go into the table."""

    path: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One bucket's commit and what is written beside it.

    Attributes:
        table_id: the table that the rows were computed for.
        bucket: whose rows.
        sequence: the bucket's last one plus one.
        metadata: ``run_id``, model, versions of the input, counts; goes into the commit's userMetadata.
    """

    table_id: str
    bucket: int
    sequence: int
    metadata: Mapping[str, Any]

    @property
    def app_id(self) -> str:
        """What the compare-and-set is about."""
        return f"sparkinfer:{self.table_id}:{self.bucket}"

    def user_metadata(self) -> str:
        """One JSON object."""
        return user_metadata({**self.metadata, "bucket": self.bucket, "sequence": self.sequence})

    def is_own(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a commit with this metadata is this one."""
        mine = {**self.metadata, "bucket": self.bucket, "sequence": self.sequence}
        return all(metadata.get(name) == mine.get(name) for name in ("run_id", "bucket", "sequence"))


def user_metadata(metadata: Mapping[str, Any]) -> str:
    """What stands beside a commit of ours: one JSON object."""
    return json.dumps({**metadata, "app": "sparkinfer"}, sort_keys=True)


def parse_metadata(text: str | None) -> dict[str, Any]:
    """The userMetadata of a commit, empty where sparkinfer did not write it."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) and value.get("app") == "sparkinfer" else {}


def last_sequences(history: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[int, int]:
    """The highest sequence of each bucket in a history of (version, metadata)."""
    found: dict[int, int] = {}
    for _, metadata in history:
        if "bucket" in metadata:
            bucket = int(metadata["bucket"])
            found[bucket] = max(found.get(bucket, 0), int(metadata["sequence"]))
    return found


class Sink(Protocol):
    """One result table. Used by one thread at a time."""

    writer: str
    table: str

    def facts(self) -> TableFacts | None:
        """The table now, or None where there is none."""

    def create(self, columns: Sequence[TableColumn], properties: Mapping[str, str]) -> None:
        """Make the empty table; nothing happens where another was faster.

        Raises:
            PermissionDenied: no right to write there.
            DiskFull: no space left.
            CommitFailed: it cannot be made for another reason.
        """

    def rows(self, version: int) -> DataFrame:
        """The table's rows at a version."""

    def append(self, staged: StagedRows, commit: Commit) -> None:
        """Add staged rows.

        Raises:
            CommitConflict: another writer was faster; nothing was written.
            PermissionDenied: no right to write there; nothing was written.
            DiskFull: no space left; nothing was written.
            CommitFailed: anything else; whether it was written, :meth:`find` says.
        """

    def merge(
        self, staged: StagedRows, on: Sequence[str], commit: Commit, *, within: Sequence[int] | None = None
    ) -> None:
        """Put staged rows in the place of those that are equal in ``on``, and add the others. Raises as append.

        Args:
            staged: the new rows.
            on: columns in which an old row and the new one are equal.
            commit: whose.
            within: the buckets that all the old rows are in, so that files of other buckets are not read; None: any.
        """

    def remove(self, staged: StagedRows, on: Sequence[str], metadata: Mapping[str, Any]) -> None:
        """Take out the rows that are equal to a staged one in ``on``; doing it twice does no more. Raises as append."""

    def find(self, commit: Commit) -> int | None:
        """The version that this commit made, or None where it is not in the table's history."""
