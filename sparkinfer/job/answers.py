"""Answers that need no request: in the result table, staged by a dead run, or in the answers table that jobs share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from sparkinfer.schema import result_fields
from sparkinfer.sink.base import Sink, TableFacts
from sparkinfer.udf.input_hash import quoted
from sparkinfer.udf.spark_types import result_struct_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparkinfer.job.spec import JobSpec

#: Where an answer came from: asked by this run, staged by an earlier one, or in the table.
ASKED, HARVESTED, REUSED = "asked", "harvested", "reused"
ANSWER = "__answer"
ORIGIN = "__origin"


class KnownAnswers:
    """Answers under this job's config_hash, by input_hash.

    Args:
        spark: the session.
        sink: the result table.
        snapshot: at which version it is read.
        harvest: folders of answers that earlier runs completed.
        segments: folders of segments that their engines wrote.
        cached: folders of answers that the answers table has.
        spec: of the job.
        config_hash: whose answers.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        sink: Sink,
        snapshot: TableFacts,
        harvest: Sequence[str],
        segments: Sequence[str],
        cached: Sequence[str] = (),
        spec: JobSpec,
        config_hash: str,
    ) -> None:
        self._spark = spark
        self._sink = sink
        self._snapshot = snapshot
        self._harvest = list(harvest)
        self._segments = list(segments)
        self._cached = list(cached)
        self._spec = spec
        self._config_hash = config_hash

    def of_bucket(self, bucket: int, inputs: DataFrame) -> DataFrame | None:
        """Answers to some inputs, one an input; None where there can be none.

        Args:
            bucket: where the inputs are from.
            inputs: with the column ``input_hash``.

        Returns:
            Columns ``input_hash``, the answer as a struct, and its origin.
        """
        parts = []
        if not self._snapshot.is_empty:
            parts.append(self._in_table(bucket))
        if folders := _of_bucket(self._harvest, bucket):
            parts.append(self._wanted(self._in_folders(folders, HARVESTED)))
        if folders := _of_bucket(self._cached, bucket):
            parts.append(self._in_folders(folders, REUSED))
        if folders := _of_bucket(self._segments, bucket):
            parts.append(self._in_segments(folders))
        if not parts:
            return None
        wanted = inputs.select("input_hash").distinct()
        together = reduce(lambda a, b: a.unionByName(b), parts).join(wanted, "input_hash", "left_semi")
        best = sql.max_by(sql.struct(ANSWER, ORIGIN), sql.col(ORIGIN))  # "reused" > "harvested"
        chosen = together.groupBy("input_hash").agg(best.alias("best"))
        return chosen.select("input_hash", sql.col(f"best.{ANSWER}"), sql.col(f"best.{ORIGIN}"))

    def _in_table(self, bucket: int) -> DataFrame:
        """Good answers of the table; the bucket lets Delta skip the files of the others."""
        is_own = (sql.col("bucket") == bucket) & (sql.col("config_hash") == self._config_hash)
        fields = [
            quoted(self._spec.output if f.column == "result" else f.column).alias(f.name)
            for f in result_fields(logprobs=self._spec.logprobs)
        ]
        rows = self._sink.rows(self._snapshot.version).where(is_own & is_good_answer())
        return rows.select("input_hash", sql.struct(*fields).alias(ANSWER), sql.lit(REUSED).alias(ORIGIN))

    def _in_folders(self, folders: Sequence[str], origin: str) -> DataFrame:
        """Staged answers: those of dead runs, or of the answers table."""
        rows = self._spark.read.schema(answers_schema(logprobs=self._spec.logprobs)).parquet(*folders)
        return rows.select("input_hash", ANSWER, sql.lit(origin).alias(ORIGIN))

    def _in_segments(self, folders: Sequence[str]) -> DataFrame:
        """Rows that engines of dead runs had finished, though their tasks had not."""
        fields = result_fields(logprobs=self._spec.logprobs)
        kinds = [f"{f.column} {'DOUBLE' if f.name == 'inferred_at' else f.ddl}" for f in fields]
        lines = self._spark.read.schema(", ".join([*kinds, "whole BOOLEAN"])).json(list(folders))
        is_whole = sql.col("whole") & (sql.col("config_hash") == self._config_hash)  # a torn line lacks its end
        moment = sql.timestamp_micros(sql.round(sql.col("inferred_at") * 1_000_000).cast("bigint"))
        values = [(moment if f.name == "inferred_at" else sql.col(f.column)).alias(f.name) for f in fields]
        rows = lines.where(is_whole).select(
            "input_hash", sql.struct(*values).alias(ANSWER), sql.lit(HARVESTED).alias(ORIGIN)
        )
        return self._wanted(rows)

    def _wanted(self, rows: DataFrame) -> DataFrame:
        """Failed answers too, unless this job asks failed rows again."""
        return rows.where(sql.col(f"{ANSWER}.errorCode").isNull()) if self._spec.retry_failed else rows


def is_good_answer() -> Column:
    """Whether a row of a result table holds an answer that other rows may have: neither failed nor skipped."""
    return sql.col("error_code").isNull() & (sql.col("finish_reason") != "skipped")


def _of_bucket(folders: Sequence[str], bucket: int) -> list[str]:
    return [path for path in folders if path.endswith(f"/bucket={bucket}")]


def answers_schema(*, logprobs: bool) -> StructType:
    """Columns of a folder of staged answers."""
    answer = result_struct_type(logprobs=logprobs)
    return StructType([StructField("input_hash", StringType()), StructField(ANSWER, answer)])
