"""One bucket after the other: pending rows staged once, distinct inputs answered, answers joined back, rows counted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from sparkinfer.errors import RowCountMismatch
from sparkinfer.job import pending as p
from sparkinfer.job.answers import ANSWER, ASKED, ORIGIN, REUSED, KnownAnswers, answers_schema
from sparkinfer.job.commit import StagedBucket
from sparkinfer.job.counts import Counts
from sparkinfer.job.failures import translated
from sparkinfer.job.spec import JobSpec
from sparkinfer.job.staging import Staging
from sparkinfer.job.tally import PAID, count_rows, first_rows, rows_by_bucket, rows_in
from sparkinfer.schema import result_fields
from sparkinfer.sink.base import Sink, StagedRows, TableFacts
from sparkinfer.udf.input_hash import quoted
from sparkinfer.udf.resolve import ResolvedUdf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Tasks of a bucket grow with its rows from one a slot to this many, so that the last ones end together.
_TASKS_PER_SLOT = 3
_ROWS_PER_TASK = 2000
SAMPLE_ROWS = 20
#: A run writes a key once, so that the two name a row.
_NAMES_A_ROW = ("row_key", "run_id")
#: Rows of a bucket in a small table, and in a large one.
_SMALL_BUCKET, _LARGE_BUCKET = 125, 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Staged rows that wait for an answer: how many a bucket, and their columns (a schema spares Spark a job a read)."""

    rows: dict[int, int]
    schema: StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """The Spark work of a job, bucket by bucket. Several threads may call it, each for its own bucket.

    Attributes:
        spark: the session.
        spec: what is read and written.
        udf: the pinned recipe, with the progress folder.
        deterministic: whether Spark may take the UDF for deterministic.
        staging: the run's folder.
        buckets: into how many the table is cut.
        slots: tasks that run at once.
        run_id: of this run.
        columns: of the result table, in order.
    """

    spark: SparkSession
    spec: JobSpec
    udf: ResolvedUdf
    deterministic: bool
    staging: Staging
    buckets: int
    slots: int
    run_id: str
    columns: tuple[str, ...]

    def stage_pending(self, states: DataFrame) -> Pending:
        """Write the pending rows down, cut into buckets and sorted by length inside.

        Returns:
            What was written: rows of each bucket that has some.
        """
        cut = p.open_rows(states).drop(p.NULL_KEY).withColumn("bucket", p.bucket_column(self.buckets))
        folder = self.staging.folder("pending")
        with translated("Staging the pending rows", place=folder):
            ordered = cut.repartition(self.buckets, "bucket").sortWithinPartitions("bucket", p.LENGTH)
            ordered.write.partitionBy("bucket").parquet(folder)
            schema = cut.schema
            rows = rows_by_bucket(folder)
        return Pending(rows=rows, schema=StructType([field for field in schema if field.name != "bucket"]))

    def answer(self, bucket: int, pending: Pending, known: KnownAnswers) -> StagedBucket:
        """Ask for the distinct inputs of a bucket that are not known, and stage its finished rows.

        Raises:
            RowCountMismatch: rows out differ from rows in.
            HostError, ModelError: the engine could not be had.
        """
        rows = pending.rows[bucket]
        with translated(f"Inference of bucket {bucket}", place=self.staging.path):
            waiting = self.spark.read.schema(pending.schema).parquet(self.staging.folder("pending", bucket))
            answered = known.of_bucket(bucket, waiting)
            self._ask(bucket, rows, waiting, answered)
            staged = self._join_back(bucket, waiting, answered)
        if staged.counts.rows != rows:
            raise RowCountMismatch(
                f"Bucket {bucket}: {rows} rows went in and {staged.counts.rows} came out; nothing of it was committed. This is a "
                f"bug of sparkinfer; what was staged stays in {self.staging.path}."
            )
        return staged

    def restage(self, sink: Sink, staged: StagedBucket, snapshot: TableFacts) -> StagedBucket:
        """The rows of a staged bucket that a newer table does not have, staged again."""
        with translated(f"Comparing bucket {staged.bucket} with the table", place=self.staging.path):
            rows = self.spark.read.parquet(staged.rows.path).drop(p.STATE, p.OLD_BUCKET)
            config_hash = self.udf.task.config_hash
            states = p.with_state(rows, sink.rows(snapshot.version), spec=self.spec, config_hash=config_hash)
            return self._stage(p.open_rows(states), staged.bucket, comparisons=staged.comparisons + 1)

    def doubles(self, sink: Sink, staged: StagedBucket | None, version: int) -> StagedRows | None:
        """Rows of the table that are superseded: of those with a key that stands there twice, all but the newest.

        Args:
            sink: the table.
            staged: only keys of this bucket; None: all.
            version: of the table.
        """
        with translated("Looking for keys that stand twice", place=self.staging.path):
            table = sink.rows(version).select(*_NAMES_A_ROW, "inferred_at")
            if staged is not None:
                table = table.join(self.spark.read.parquet(staged.rows.path).select("row_key"), "row_key", "left_semi")
            newest_first = Window.partitionBy("row_key").orderBy(p.row_age().desc())
            ranked = table.withColumn("__rank", sql.row_number().over(newest_first))
            folder = self.staging.folder(f"doubles-{version}", 0 if staged is None else staged.bucket)
            ranked.where("__rank > 1").select(*_NAMES_A_ROW).write.mode("overwrite").parquet(folder)
        return StagedRows(path=folder, columns=_NAMES_A_ROW) if rows_in(folder) else None

    def samples(self, staged: StagedBucket, *, rows: int = SAMPLE_ROWS) -> tuple[dict[str, str | None], ...]:
        """A few finished rows: key, kept columns and answer as text, for the tracker."""
        shown = (*self.spec.kept, self.spec.output, "error_code", "finish_reason")
        return first_rows(staged.rows.path, shown, rows=rows)

    def _ask(self, bucket: int, rows: int, waiting: DataFrame, answered: DataFrame | None) -> None:
        """Answer each distinct input once; nothing is asked where everything is known."""
        if answered is not None:
            waiting = waiting.join(answered.select("input_hash"), "input_hash", "left_anti")
        # An explicit number of partitions, so that adaptive execution does not put all rows into one task; by hash, so that a
        # task that is retried gets the rows it had.
        spread = waiting.repartition(self._tasks(rows), "input_hash").dropDuplicates(["input_hash"])
        arguments = [sql.col(p.argument_column(i)) for i in range(len(self.spec.arguments))]
        params = None if self.spec.params is None else sql.col(p.PARAMS_COLUMN)
        udf = self.udf.with_segments(self.staging.make_segments(bucket))
        answer = udf.struct_column(arguments, params=params, deterministic=self.deterministic, reads_all=True)
        asked = spread.sortWithinPartitions(p.LENGTH).select("input_hash", answer.alias(ANSWER))
        asked.write.parquet(self.staging.folder("answers", bucket))

    def _join_back(self, bucket: int, waiting: DataFrame, answered: DataFrame | None) -> StagedBucket:
        schema = answers_schema(logprobs=self.spec.logprobs)
        asked = self.spark.read.schema(schema).parquet(self.staging.folder("answers", bucket))
        asked = asked.withColumn(ORIGIN, sql.lit(ASKED))
        answers = asked if answered is None else asked.unionByName(answered)
        first = sql.row_number().over(Window.partitionBy("input_hash").orderBy("row_key")) == 1
        joined = waiting.join(answers, "input_hash", "left").withColumn(PAID, first & (sql.col(ORIGIN) != REUSED))
        values = {
            **{name: quoted(name) for name in self.spec.kept},
            **self._answer_values(),
            "row_key": sql.col("row_key"),
            "run_id": sql.lit(self.run_id),
            "bucket": sql.lit(bucket),
        }
        ordered = [values[name].alias(name) for name in self.columns]
        return self._stage(joined.select(*ordered, p.STATE, p.OLD_BUCKET, ORIGIN, PAID), bucket, comparisons=0)

    def _answer_values(self) -> dict[str, Column]:
        """The struct's fields as columns of the table; twins and reused answers count no attempt."""
        values = {}
        for field in result_fields(logprobs=self.spec.logprobs):
            value = sql.col(f"{ANSWER}.{field.name}")
            if field.name == "attempts":
                value = sql.when(sql.col(PAID), value).otherwise(sql.lit(0))
            name = self.spec.output if field.column == "result" else field.column
            values[name] = sql.col("input_hash") if field.name == "input_hash" else value
        return values

    def _stage(self, rows: DataFrame, bucket: int, *, comparisons: int) -> StagedBucket:
        folder = self.staging.folder(f"rows-{comparisons}", bucket)
        rows.write.mode("overwrite").parquet(folder)
        counts = self._count(folder, bucket)
        rows_there = StagedRows(path=folder, columns=self.columns)
        return StagedBucket(bucket=bucket, rows=rows_there, counts=counts, comparisons=comparisons)

    def _count(self, folder: str, bucket: int) -> Counts:
        """Count what was really written."""
        counts, lost = count_rows(folder, key=self.spec.key or ("row_key",))
        if lost:
            raise RowCountMismatch(
                f"Bucket {bucket}: {lost} rows got no answer; nothing of it was committed. This is a bug of sparkinfer; what was "
                f"staged stays in {self.staging.path}."
            )
        return counts

    def _tasks(self, rows: int) -> int:
        return max(1, min(rows, max(self.slots, min(self.slots * _TASKS_PER_SLOT, rows // _ROWS_PER_TASK))))


def slot_count(spark: SparkSession) -> int:
    """Tasks that run at once: the master says it in local mode, else how many partitions Spark gives a range (over Connect too)."""
    local = re.match(r"local\[(\d+)", spark.conf.get("spark.master", None) or "")
    if local is not None:
        return int(local[1])
    return max(1, spark.range(1 << 16).select(sql.spark_partition_id().alias("p")).distinct().count())


def bucket_number(rows: int) -> int:
    """Into how many buckets a new table is cut: small jobs commit every hundred-odd rows, large ones a few hundred times.

    A bucket costs nine small Spark jobs, five CPU seconds on a busy machine of two cores; a hundred-odd rows take a small
    model half a minute there.
    """
    return max(1, min(16, rows // _SMALL_BUCKET), min(256, rows // _LARGE_BUCKET))
