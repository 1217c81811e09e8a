"""A Delta table written by delta-rs, for sessions without Delta: paths only, the driver writes.

delta-rs records a transaction but does not check it (a repeated write doubles the rows), so the check is here: the handle
is loaded, its ``transaction_version`` compared, and the write made with that same handle; a writer that was faster then
shows as a conflict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkinfer.errors import CommitConflict
from sparkinfer.sink.base import (
    Commit,
    PastCommit,
    StagedRows,
    TableColumn,
    TableFacts,
    last_sequences,
    parse_metadata,
    user_metadata,
)
from sparkinfer.sink.faults import job_error, mapped
from sparkinfer.sink.location import absolute

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable
    from deltalake import Schema as DeltaSchema
    from pyspark.sql import DataFrame, SparkSession


class DeltaRsSink:
    """One Delta table by path; see :class:`sparkinfer.sink.base.Sink`.

    Args:
        spark: any session; it only reads.
        table: path.
    """

    writer = "delta-rs"

    def __init__(self, spark: SparkSession, table: str) -> None:
        self.table = absolute(table)
        self._spark = spark

    def facts(self) -> TableFacts | None:
        """The table now; no Spark job."""
        table = self._load()
        return None if table is None else facts_of(table)

    def create(self, columns: Sequence[TableColumn], properties: Mapping[str, str]) -> None:
        """Make the empty table."""
        from deltalake import DeltaTable

        try:
            DeltaTable.create(
                self.table,
                schema=_delta_schema(self._spark, columns),
                mode="ignore",
                configuration=dict(properties),
                raise_if_key_not_exists=False,
            )
        except Exception as error:
            if self._load() is None:
                raise job_error(error, table=self.table, doing="Creating the table") from error

    def rows(self, version: int) -> DataFrame:
        """The table at a version: its files, read by Spark as Parquet."""
        return read_delta(self._spark, self.table, version)

    def append(self, staged: StagedRows, commit: Commit) -> None:
        """One append, checked against the table's last transaction."""
        from deltalake import write_deltalake

        with mapped(table=self.table, doing=f"Committing bucket {commit.bucket}"):
            table = self._unless_done(commit)
            write_deltalake(table, _staged_rows(staged, table), mode="append", commit_properties=_properties(commit))

    def merge(
        self, staged: StagedRows, on: Sequence[str], commit: Commit, *, within: Sequence[int] | None = None
    ) -> None:
        """One MERGE, checked as an append is."""
        condition = " AND ".join(f't."{c}" = s."{c}"' for c in on)
        if within is not None:
            condition += f' AND t."bucket" IN ({", ".join(map(str, within))})'
        with mapped(table=self.table, doing=f"Committing bucket {commit.bucket}"):
            table = self._unless_done(commit)
            (
                table.merge(
                    source=_staged_rows(staged, table),
                    predicate=condition,
                    source_alias="s",
                    target_alias="t",
                    commit_properties=_properties(commit),
                )
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute()
            )

    def remove(self, staged: StagedRows, on: Sequence[str], metadata: Mapping[str, Any]) -> None:
        """One MERGE that deletes; a writer that is faster is a conflict."""
        from deltalake import CommitProperties

        condition = " AND ".join(f't."{c}" = s."{c}"' for c in on)
        properties = CommitProperties(custom_metadata={"userMetadata": user_metadata(metadata)}, max_commit_retries=0)
        with mapped(table=self.table, doing="Taking doubled rows out"):
            table = self._load()
            if table is None:
                raise CommitConflict(f"{self.table} was dropped by another writer.")
            table.merge(
                source=_staged_rows(staged, table),
                predicate=condition,
                source_alias="s",
                target_alias="t",
                commit_properties=properties,
            ).when_matched_delete().execute()

    def find(self, commit: Commit) -> int | None:
        """Look through the history."""
        table = self._load()
        history = [] if table is None else commits_of(table)
        return next((version for version, metadata in history if commit.is_own(metadata)), None)

    def _load(self) -> DeltaTable | None:
        from deltalake import DeltaTable

        try:
            return DeltaTable(self.table) if DeltaTable.is_deltatable(self.table) else None
        except Exception as error:
            raise job_error(error, table=self.table, doing="Reading the table") from error

    def _unless_done(self, commit: Commit) -> DeltaTable:
        """The handle to write with, whose snapshot does not have this transaction yet."""
        table = self._load()
        last = None if table is None else table.transaction_version(commit.app_id)
        if table is None or (last is not None and last >= commit.sequence):
            raise CommitConflict(f"Bucket {commit.bucket} of {self.table} was committed by another writer first.")
        return table


def facts_of(table: DeltaTable) -> TableFacts:
    """What the log of a table says."""
    history = past_commits(table)
    commits = [(commit.version, commit.metadata) for commit in history]
    return TableFacts(
        version=table.version(),
        table_id=str(table.metadata().id),
        columns=table_columns(table),
        properties=dict(table.metadata().configuration),
        files=len(table.file_uris()) if table.version() == 0 else 1,
        sequences=last_sequences(commits),
        oldest=min((version for version, _ in commits), default=0),
        history=history,
    )


def commits_of(table: DeltaTable, limit: int | None = None) -> list[tuple[int, dict[str, Any]]]:
    """(version, our metadata or {}) of the newest commits, or of all."""
    return [(commit.version, dict(commit.metadata)) for commit in past_commits(table, limit)]


def past_commits(table: DeltaTable, limit: int | None = None) -> tuple[PastCommit, ...]:
    """The newest commits, or all, newest first."""
    found = [
        PastCommit(
            version=int(c["version"]),
            operation=str(c.get("operation", "")),
            metadata=parse_metadata(c.get("userMetadata")),
        )
        for c in table.history(limit)
        if "version" in c
    ]
    return tuple(sorted(found, key=lambda commit: -commit.version))


def table_columns(table: DeltaTable) -> tuple[TableColumn, ...]:
    """Names and Spark types of a table's columns."""
    return tuple(TableColumn(name=f.name, ddl=_ddl(json.loads(f.type.to_json()))) for f in table.schema().fields)


def read_delta(spark: SparkSession, path: str, version: int) -> DataFrame:
    """A Delta table at a version in a session without Delta.

    Its files are read as Parquet where that is all there is to it; a partitioned table or one with deletion vectors goes
    through Arrow on the driver.
    """
    from deltalake import DeltaTable

    table = DeltaTable(path, version=version)
    ddl = ", ".join(f"`{c.name}` {c.ddl}" for c in table_columns(table))
    files = table.file_uris()
    if not files:
        return spark.createDataFrame([], ddl)
    if table.metadata().partition_columns or "deletionVectors" in (table.protocol().reader_features or []):
        import pyarrow as pa

        return spark.createDataFrame(pa.table(table.to_pyarrow_table()))
    return spark.read.schema(ddl).parquet(*files)


def _properties(commit: Commit) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata={"userMetadata": commit.user_metadata()},
        app_transactions=[Transaction(commit.app_id, commit.sequence)],
        max_commit_retries=0,
    )


def _staged_rows(staged: StagedRows, table: DeltaTable) -> pa.RecordBatchReader:
    """The staged rows as a stream of record batches, in the types of the table."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    schema = pa.schema([field for field in pa.schema(table.schema().to_arrow()) if field.name in staged.columns])
    source = ds.dataset(re.sub("^file:/+", "/", staged.path), format="parquet", schema=schema)
    return source.scanner(columns=schema.names).to_reader()


def _delta_schema(spark: SparkSession, columns: Sequence[TableColumn]) -> DeltaSchema:
    """Delta's schema for Spark's types: the two write theirs as the same JSON."""
    from deltalake import Schema

    ddl = ", ".join(f"`{c.name}` {c.ddl}" for c in columns)
    return Schema.from_json(spark.createDataFrame([], ddl).schema.json())


def _ddl(kind: Any) -> str:
    """A Delta schema type as Spark SQL writes it."""
    if isinstance(kind, str):
        names = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
        return names.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_ddl(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_ddl(kind['keyType'])},{_ddl(kind['valueType'])}>"
    inner = ",".join(f"{f['name']}:{_ddl(f['type'])}" for f in kind["fields"])
    return f"struct<{inner}>"
