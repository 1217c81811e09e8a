"""A Delta table written by Spark: SQL and DataFrames only, so that Spark Connect works.

What decides (docs.delta.io, idempotent writes): an append with ``txnAppId`` and ``txnVersion`` whose version is not higher
than the last one of that id is dropped silently, before its DataFrame runs; two at the same time conflict. MERGE takes the
two from session settings only, so it runs in a Spark session of its own.

Every look at a table through Spark is a handful of Spark jobs (DESCRIBE DETAIL computes a whole snapshot). The log of a table
on a file system of this machine is read by delta-rs instead, in milliseconds; what that cannot read is asked of Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sparkinfer.errors import CommitConflict, TableSchemaMismatch
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
from sparkinfer.sink.delta_rs import commits_of, facts_of
from sparkinfer.sink.faults import first_line, job_error, mapped
from sparkinfer.sink.location import absolute, has_scheme, is_path, sql_name

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

_ABSENT = ("DELTA_MISSING_DELTA_TABLE", "TABLE_OR_VIEW_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "PATH_NOT_FOUND")
_HALF_MADE = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
APPEARS_TRIES, APPEARS_PAUSE_S = 6, 0.5
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
#: How many of the newest commits are looked at before the whole history is.
_RECENT = 50


class DeltaSparkSink:
    """One Delta table, by name or by path; see :class:`sparkinfer.sink.base.Sink`.

    Args:
        spark: a session with Delta.
        table: table name or path.
    """

    writer = "delta-spark"

    def __init__(self, spark: SparkSession, table: str) -> None:
        self.table = absolute(table)
        self._spark = spark
        self._sql_name = sql_name(table)
        self._ddl: str | None = None

    def facts(self) -> TableFacts | None:
        """The table now, or None."""
        facts = self._from_log(facts_of) or self._asked()
        if facts is not None:
            self._ddl = ", ".join(f"{_quoted(c.name)} {c.ddl}" for c in facts.columns)
        return facts

    def _asked(self) -> TableFacts | None:
        """The table as Spark describes it."""
        detail = self._detail()
        if detail is None:
            return None
        history = self._asked_history()
        version = history[0].version
        with mapped(table=self.table, doing="Reading the schema"):
            schema = self.rows(version).schema
        return TableFacts(
            version=version,
            table_id=detail["id"],
            columns=tuple(TableColumn(name=f.name, ddl=f.dataType.simpleString()) for f in schema),
            properties=dict(detail["properties"] or {}),
            files=int(detail["numFiles"] or 0),
            sequences=last_sequences([(commit.version, commit.metadata) for commit in history]),
            oldest=history[-1].version,
            history=history,
        )

    def create(self, columns: Sequence[TableColumn], properties: Mapping[str, str]) -> None:
        """Make the empty table with features that every Delta reader knows."""
        ddl = ", ".join(f"{_quoted(c.name)} {c.ddl}" for c in columns)
        pairs = {**properties, "delta.enableDeletionVectors": "false"}
        props = ", ".join(f"'{name}' = '{value}'" for name, value in pairs.items())
        try:
            self._spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self._sql_name} ({ddl}) USING DELTA TBLPROPERTIES ({props})"
            ).collect()
        except Exception as error:
            found = job_error(error, table=self.table, doing="Creating the table")
            if not isinstance(found, CommitConflict) and not (_HALF_MADE in str(error) and self._appears()):
                raise found from error

    def rows(self, version: int) -> DataFrame:
        """The table at a version."""
        reader = self._spark.read.format("delta").option("versionAsOf", version)
        return reader.load(self.table) if is_path(self.table) else reader.table(self.table)

    def append(self, staged: StagedRows, commit: Commit) -> None:
        """One idempotent append."""
        with mapped(table=self.table, doing=f"Committing bucket {commit.bucket}"):
            reader = self._spark.read if self._ddl is None else self._spark.read.schema(self._ddl)
            writer = (
                reader.parquet(staged.path)
                .select([_quoted(c) for c in staged.columns])
                .write.format("delta")
                .mode("append")
                .option("txnAppId", commit.app_id)
                .option("txnVersion", commit.sequence)
                .option("userMetadata", commit.user_metadata())
            )
            if is_path(self.table):
                writer.save(self.table)
            else:
                writer.saveAsTable(self.table)

    def merge(
        self, staged: StagedRows, on: Sequence[str], commit: Commit, *, within: Sequence[int] | None = None
    ) -> None:
        """One MERGE, idempotent as an append is."""
        settings = {
            "spark.databricks.delta.write.txnAppId": commit.app_id,
            "spark.databricks.delta.write.txnVersion": str(commit.sequence),
            _USER_METADATA: commit.user_metadata(),
        }
        with mapped(table=self.table, doing=f"Committing bucket {commit.bucket}"):
            self._merge(
                staged,
                on,
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
                settings=settings,
                within=within,
            )

    def remove(self, staged: StagedRows, on: Sequence[str], metadata: Mapping[str, Any]) -> None:
        """One MERGE that deletes."""
        with mapped(table=self.table, doing="Taking doubled rows out"):
            self._merge(staged, on, "WHEN MATCHED THEN DELETE", settings={_USER_METADATA: user_metadata(metadata)})

    def _merge(
        self,
        staged: StagedRows,
        on: Sequence[str],
        clauses: str,
        *,
        settings: Mapping[str, str],
        within: Sequence[int] | None = None,
    ) -> None:
        condition = " AND ".join(f"t.{_quoted(c)} = s.{_quoted(c)}" for c in on)
        if within is not None:
            condition += f" AND t.`bucket` IN ({', '.join(map(str, within))})"
        source = f"SELECT {', '.join(map(_quoted, staged.columns))} FROM {sql_name(staged.path, provider='parquet')}"  # noqa: S608 - quoted names
        with _session_with(self._spark, settings) as session:
            session.sql(f"MERGE INTO {self._sql_name} AS t USING ({source}) AS s ON {condition} {clauses}").collect()

    def find(self, commit: Commit) -> int | None:
        """Look at the newest commits first, then at all."""
        for limit in (_RECENT, None):
            history = self._history(limit)
            for version, metadata in history:
                if commit.is_own(metadata):
                    return version
            if limit is not None and len(history) < limit:
                return None
        return None

    def _appears(self) -> bool:
        """Whether the table is there shortly: another writer's log folder is seen a moment before the log is."""
        for _ in range(APPEARS_TRIES):
            if self._detail() is not None:
                return True
            time.sleep(APPEARS_PAUSE_S)
        return False

    def _detail(self) -> Any | None:
        try:
            detail = self._spark.sql(f"DESCRIBE DETAIL {self._sql_name}").collect()[0]
        except Exception as error:
            if any(code in str(error) for code in _ABSENT):
                return None
            raise job_error(error, table=self.table, doing="Reading the table") from error
        if detail["format"] != "delta":
            raise TableSchemaMismatch(
                f"{self.table} is a table of format {detail['format']}, not Delta. Name another table."
            )
        return detail

    def _history(self, limit: int | None = None) -> list[tuple[int, dict[str, Any]]]:
        """(version, our metadata or {}) of the commits, newest first."""
        found = self._from_log(lambda log: commits_of(log, limit))
        if found is not None:
            return sorted(found, key=lambda h: -h[0])
        return [(commit.version, dict(commit.metadata)) for commit in self._asked_history(limit)]

    def _asked_history(self, limit: int | None = None) -> tuple[PastCommit, ...]:
        """The commits as Spark tells them, newest first."""
        clause = f" LIMIT {limit}" if limit is not None else ""
        with mapped(table=self.table, doing="Reading the history"):
            history = self._spark.sql(f"DESCRIBE HISTORY {self._sql_name}{clause}")
            rows = history.select("version", "operation", "userMetadata").collect()
        found = [
            PastCommit(
                version=int(row["version"]), operation=row["operation"], metadata=parse_metadata(row["userMetadata"])
            )
            for row in rows
        ]
        return tuple(sorted(found, key=lambda commit: -commit.version))

    def _from_log(self, read: Callable[[DeltaTable], T]) -> T | None:
        """What delta-rs reads from the log of a local table; None where there is none, or only Spark can read it."""
        if not is_path(self.table) or has_scheme(self.table):
            return None
        from deltalake import DeltaTable

        try:
            return read(DeltaTable(self.table)) if DeltaTable.is_deltatable(self.table) else None
        except Exception as error:  # a newer feature of the format, no right to read: Spark knows or says it better
            _LOG.info("delta-rs cannot read the log of %s: %s", self.table, first_line(error))
            return None


def has_delta(spark: SparkSession) -> bool:
    """Whether this session can write Delta: asks for a table that is not there and reads the error."""
    try:
        spark.sql("DESCRIBE HISTORY delta.`/sparkinfer/no/such/table`").collect()
    except Exception as error:  # every kind of "no" is an answer here
        return "DELTA_" in first_line(error) and "DELTA_CONFIGURE_SPARK_SESSION" not in first_line(error)
    return True


@contextmanager
def _session_with(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session of its own with these settings; where Connect has no newSession, this one with them for a while."""
    try:
        session = spark.newSession()
    except Exception:  # NOT_IMPLEMENTED over Connect before Spark 4.1
        session = spark
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield session
    finally:
        for name, old in before.items():
            session.conf.unset(name) if old is None else session.conf.set(name, old)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
