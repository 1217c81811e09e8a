"""The answers table that jobs share: a text answered under the same configuration in any of them is not asked again.

One row an answer, keyed (input_hash, config_hash), with the struct's fields; only good answers that were paid for. A job looks
into it once, before it asks, and adds its own in one commit after they stand in its result table. That commit is a
compare-and-set as every other (one for the whole table), so that two jobs at once add an answer once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from sparkinfer.errors import InvalidConfig, SparkInferError
from sparkinfer.job.answers import ANSWER, is_good_answer
from sparkinfer.job.commit import Committer, StagedBucket
from sparkinfer.job.counts import Counts
from sparkinfer.job.failures import translated
from sparkinfer.job.spec import JobSpec, check_table
from sparkinfer.job.staging import Staging
from sparkinfer.job.tally import rows_by_bucket, rows_in
from sparkinfer.schema import result_fields
from sparkinfer.sink.base import VERSION_PROPERTY, Sink, StagedRows, TableColumn, TableFacts
from sparkinfer.sink.location import absolute
from sparkinfer.sink.open import open_sink
from sparkinfer.udf.input_hash import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)

#: The table's columns: the struct's fields by the names that they have in result tables.
COLUMNS = tuple(TableColumn(name=field.column, ddl=field.ddl) for field in result_fields(logprobs=True))
#: Commits of all jobs form one sequence.
_SEQUENCE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAnswers:
    """The answers table as one job sees it.

    Attributes:
        spark: the session.
        sink: the table.
        snapshot: at which version it is read.
        spec: of the job.
        config_hash: whose answers.
        run_id: of this run.
    """

    spark: SparkSession
    sink: Sink
    snapshot: TableFacts
    spec: JobSpec
    config_hash: str
    run_id: str

    def stage_known(self, staging: Staging) -> list[str]:
        """Write down the answers to pending inputs that the table has.

        Returns:
            Folders, one a bucket that has some.
        """
        if self.snapshot.is_empty:
            return []
        folder = staging.folder("cached")
        with translated("Looking into the answers table", place=self.sink.table):
            pending = self.spark.read.parquet(staging.folder("pending")).select("input_hash", "bucket").distinct()
            fields = [sql.col(f.column).alias(f.name) for f in result_fields(logprobs=self.spec.logprobs)]
            answers = self._own(self.snapshot).select("input_hash", sql.struct(*fields).alias(ANSWER))
            known = answers.join(pending, "input_hash").dropDuplicates(["input_hash"])
            known.write.partitionBy("bucket").parquet(folder)
        return [staging.folder("cached", bucket) for bucket in rows_by_bucket(folder)]

    def add(self, results: Sink, version: int, staging: Staging) -> None:
        """Add what this run paid for and committed; what goes wrong is a warning, for the job's own rows are safe.

        Args:
            results: the result table.
            version: at which it has this run's rows.
            staging: the run's folder.
        """
        try:
            staged = self._staged(self._paid(results.rows(version)), staging, comparisons=0)
            committer = Committer(
                self.sink,
                snapshot=self.snapshot,
                merge_keys=(),
                metadata={"run_id": self.run_id, "config_hash": self.config_hash},
                restage=lambda staged, snapshot: self._missing(staged, snapshot, staging),
            )
            committer.commit(staged)
        except Exception as error:
            said = error.message if isinstance(error, SparkInferError) else f"{type(error).__name__}: {error}"
            _LOG.warning("The answers of this run were not added to the answers table %s: %s", self.sink.table, said)

    def _own(self, snapshot: TableFacts) -> DataFrame:
        return self.sink.rows(snapshot.version).where(sql.col("config_hash") == self.config_hash)

    def _paid(self, rows: DataFrame) -> DataFrame:
        """The first row of each input that this run asked: the others of it count no attempt."""
        is_paid = (sql.col("run_id") == self.run_id) & (sql.col("attempts") > 0)
        has = {field.name for field in result_fields(logprobs=self.spec.logprobs)}
        values = [
            (quoted(self.spec.output if f.column == "result" else f.column) if f.name in has else sql.lit(None).cast(f.ddl))
            .alias(f.column)
            for f in result_fields(logprobs=True)
        ]  # fmt: skip
        return rows.where(is_paid & is_good_answer()).select(*values)

    def _missing(self, staged: StagedBucket, snapshot: TableFacts, staging: Staging) -> StagedBucket:
        """What the newest table does not have yet."""
        rows = self.spark.read.parquet(staged.rows.path)
        left = rows.join(self._own(snapshot).select("input_hash"), "input_hash", "left_anti")
        return self._staged(left, staging, comparisons=staged.comparisons + 1)

    def _staged(self, rows: DataFrame, staging: Staging, *, comparisons: int) -> StagedBucket:
        folder = staging.folder(f"cache-{comparisons}")
        names = tuple(column.name for column in COLUMNS)
        rows.select(*names).write.mode("overwrite").parquet(folder)
        return StagedBucket(
            bucket=_SEQUENCE,
            rows=StagedRows(path=folder, columns=names),
            counts=Counts(rows=rows_in(folder)),
            comparisons=comparisons,
        )


def open_shared(spark: SparkSession, cache: str, *, into: str) -> Sink:
    """The answers table, checked before anything is asked.

    Args:
        spark: the session.
        cache: its name or path.
        into: the result table.

    Raises:
        InvalidConfig: it is the result table.
        TableSchemaMismatch: it is a table with other columns.
    """
    if absolute(cache) == absolute(into):
        raise InvalidConfig(f"run(): cache must be a table of its own, not the result table {into}.")
    sink = open_sink(spark, cache)
    facts = sink.facts()
    if facts is not None:
        check_table(facts, COLUMNS, table=cache)
    return sink


def begun(sink: Sink) -> TableFacts | None:
    """The answers table now, made where there is none; None (and a warning) where it cannot be had."""
    try:
        facts = sink.facts()
        if facts is None:
            sink.create(COLUMNS, {VERSION_PROPERTY: "1"})
            facts = sink.facts()
    except SparkInferError as error:
        _LOG.warning("The answers table %s cannot be used, the job goes on without it: %s", sink.table, error.message)
        return None
    return facts
