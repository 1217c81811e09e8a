"""Which rows need an answer: the source's rows compared with the result table's, in one Spark pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sql

from sparkinfer.errors import DuplicateKey, NullKey
from sparkinfer.job.spec import JobSpec
from sparkinfer.udf.input_hash import input_hash_column, quoted, row_key_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What a source row is to the table. NEW is added, REPLACE takes the place of an older row, the others are left alone.
NEW, REPLACE, DONE, FAILED_BEFORE = "new", "replace", "done", "failed_before"

_OCCURRENCE = "__occurrence"
_IDENTITY = "__identity"
NULL_KEY = "__null_key"
STATE = "__state"
#: Bucket of the older row whose place a row takes; null where it is not known, and for every other row.
OLD_BUCKET = "__old_bucket"
#: Whether the table has the row's key twice: two jobs wrote it at once, and the one that would have settled it was killed.
DOUBLED = "__doubled"
PARAMS_COLUMN = "__params"
LENGTH = "__length"


def argument_column(position: int) -> str:
    """Name of the staged column that feeds the UDF's argument."""
    return f"__arg_{position}"


def keyed_rows(frame: DataFrame, spec: JobSpec, *, beside: Sequence[str] = ()) -> DataFrame:
    """The source's rows as the job needs them: kept columns, arguments, ``row_key``, ``input_hash``, length.

    Args:
        frame: the source's rows.
        spec: of the job.
        beside: further columns of them to keep.

    Raises:
        WrongColumnType: an argument whose type has no canonical text.
    """
    frame, row_key = _with_row_key(frame, spec)
    arguments = dict(spec.arguments)
    input_hash = input_hash_column(frame.schema, names=list(arguments), columns=arguments, params=spec.params)
    is_null = reduce(lambda a, b: a | b, [quoted(name).isNull() for name in spec.key], sql.lit(False))
    columns = [quoted(name) for name in spec.kept]
    columns += [quoted(name).alias(argument_column(i)) for i, (_, name) in enumerate(spec.arguments)]
    if spec.params is not None:
        columns.append(quoted(spec.params).alias(PARAMS_COLUMN))
    texts = [sql.coalesce(sql.length(quoted(name).cast("string")), sql.lit(0)) for _, name in spec.arguments]
    length = reduce(lambda a, b: a + b, texts)
    return frame.select(
        *columns,
        row_key.alias("row_key"),
        input_hash.alias("input_hash"),
        is_null.alias(NULL_KEY),
        length.alias(LENGTH),
        *beside,
    )


def with_state(rows: DataFrame, table: DataFrame | None, *, spec: JobSpec, config_hash: str) -> DataFrame:
    """Rows with what each is to the table.

    Args:
        rows: with ``row_key`` and ``input_hash``.
        table: the result table at one version, or None while there is none.
        spec: mode and whether failed rows are asked again.
        config_hash: of this job.
    """
    if table is None:
        fresh = rows.withColumn(STATE, sql.lit(NEW)).withColumn(OLD_BUCKET, sql.lit(None).cast("int"))
        return fresh.withColumn(DOUBLED, sql.lit(False))
    old = table.select(
        sql.col("row_key"),
        sql.col("input_hash").alias("__old_input"),
        sql.col("config_hash").alias("__old_config"),
        sql.col("error_code").isNotNull().alias("__old_failed"),
        sql.col("bucket").alias("__from_bucket"),
        row_age().alias("__age"),
    )
    is_same = (sql.col("__old_input") == sql.col("input_hash")) & (sql.col("__old_config") == sql.lit(config_hash))
    if spec.mode == "append":
        old = old.where(sql.col("__old_config") == sql.lit(config_hash)).withColumn(
            "input_hash", sql.col("__old_input")
        )
        only = old.dropDuplicates(["row_key", "input_hash"]).withColumn(DOUBLED, sql.lit(False))
        joined = rows.join(only, ["row_key", "input_hash"], "left")
    else:
        joined = rows.join(_newest(old), "row_key", "left")
    again = sql.lit(REPLACE if spec.retry_failed else FAILED_BEFORE)
    state = (
        sql.when(sql.col("__old_config").isNull(), NEW)
        .when(~is_same, REPLACE)
        .when(sql.col("__old_failed"), again)
        .otherwise(DONE)
    )
    old_bucket = sql.when(sql.col(STATE) == REPLACE, sql.col("__from_bucket"))
    known = joined.withColumn(STATE, state).withColumn(OLD_BUCKET, old_bucket)
    known = known.withColumn(DOUBLED, sql.coalesce(DOUBLED, sql.lit(False)))
    return known.drop("__old_input", "__old_config", "__old_failed", "__from_bucket", "__age")


def row_age() -> Column:
    """Of two rows of a table with one key the newer is the greater by this; every job takes the same one for the newest."""
    return sql.struct("inferred_at", "run_id")


def open_rows(states: DataFrame) -> DataFrame:
    """Of rows with their states those that need an answer."""
    return states.where(sql.col(STATE).isin(NEW, REPLACE)).drop(DOUBLED)


def _newest(old: DataFrame) -> DataFrame:
    """One row a key, the newest where there are two."""
    values = [name for name in old.columns if name not in ("row_key", "__age")]
    by_key = old.groupBy("row_key").agg(
        sql.max(sql.struct("__age", *values)).alias("newest"), (sql.count(sql.lit(1)) > 1).alias(DOUBLED)
    )
    return by_key.select("row_key", *[sql.col(f"newest.{name}").alias(name) for name in values], DOUBLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """How the source's rows stand to the table.

    Attributes:
        doubtful: those that the caller asked to be counted so.
        doubled: those whose key the table has twice.
    """

    source_rows: int
    new: int
    replaced: int
    already_done: int
    failed_before: int
    doubtful: int = 0
    doubled: int = 0

    @property
    def pending(self) -> int:
        """Rows that need an answer."""
        return self.new + self.replaced


def survey(states: DataFrame, *, spec: JobSpec, doubtful: Column | None = None) -> Survey:
    """Count the states and check the key, in one pass.

    Args:
        states: from :func:`with_state`.
        spec: of the job.
        doubtful: a condition whose rows are counted apart.

    Raises:
        NullKey: key columns hold nulls.
        DuplicateKey: rows share a key; one of them is named.
    """
    counts = states.agg(
        sql.count(sql.lit(1)).alias("rows"),
        sql.coalesce(sql.sum(sql.col(NULL_KEY).cast("long")), sql.lit(0)).alias("nulls"),
        sql.count_distinct(sql.col("row_key")).alias("keys"),
        *(_count_of(state) for state in (NEW, REPLACE, DONE, FAILED_BEFORE)),
        sql.count(sql.when(sql.lit(False) if doubtful is None else doubtful, 1)).alias("doubtful"),
        sql.count(sql.when(sql.col(DOUBLED), 1)).alias("doubled"),
    ).collect()[0]
    if counts["nulls"]:
        raise NullKey(
            f"run(): {counts['nulls']} of {counts['rows']} source rows have a null in key {list(spec.key)}. Filter them out, or "
            "leave key out to know rows by all their columns."
        )
    if counts["keys"] < counts["rows"]:
        raise DuplicateKey(_duplicate_text(states, spec, counts["rows"] - counts["keys"]))
    return Survey(
        source_rows=counts["rows"],
        new=counts[NEW],
        replaced=counts[REPLACE],
        already_done=counts[DONE],
        failed_before=counts[FAILED_BEFORE],
        doubtful=counts["doubtful"],
        doubled=counts["doubled"],
    )


def bucket_column(buckets: int) -> Column:
    """The bucket of an input: equal inputs meet in one."""
    return sql.pmod(sql.conv(sql.substring("input_hash", 1, 15), 16, 10).cast("long"), sql.lit(buckets)).cast("int")


def _with_row_key(frame: DataFrame, spec: JobSpec) -> tuple[DataFrame, Column]:
    """The frame and its row key; without key columns all columns and an occurrence number are it."""
    if spec.key:
        return frame, row_key_column(frame.schema, key=list(spec.key))
    names = frame.columns
    identified = frame.withColumn(_IDENTITY, row_key_column(frame.schema, key=names))
    occurrence = sql.row_number().over(Window.partitionBy(_IDENTITY).orderBy(_IDENTITY))
    numbered = identified.withColumn(_OCCURRENCE, occurrence)
    return numbered, row_key_column(numbered.schema, key=[*names, _OCCURRENCE])


def _count_of(state: str) -> Column:
    return sql.count(sql.when(sql.col(STATE) == state, 1)).alias(state)


def _duplicate_text(states: DataFrame, spec: JobSpec, surplus: int) -> str:
    """Names one key that is there twice; a second pass, made only for the message."""
    names = [quoted(name) for name in spec.key]
    twice = states.groupBy(*names).count().where("count > 1").limit(1).collect()[0]
    example = ", ".join(f"{name}={twice[name]!r}" for name in spec.key)
    return (
        f"run(): {surplus} source rows have the key {list(spec.key)} of another row, for example {example} ({twice['count']} rows). "
        "Add a column to key, or leave key out to know rows by all their columns."
    )
