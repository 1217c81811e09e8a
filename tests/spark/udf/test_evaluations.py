"""The queries under which Spark runs a UDF more or less than once a row: the engine is asked once for each distinct input.

In brackets: how often Spark runs a deterministic UDF a row where that is not once (measured with Spark 4.2 on twenty rows in two
partitions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from sparkinfer import llm_udf
from tests.support.counting import CountingModel

ROWS = 20
A, B = "r.result", "r.input_hash"
ALL, PUSHED, NONE, FEW = range(ROWS, ROWS + 1), range(5, 6), range(1), range(1, ROWS + 1)


@dataclass(frozen=True)
class Query:
    """What is run on a frame with the columns id, text and r; ``asked``: how many inputs the engine may see."""

    run: Callable[[Any, Any, str], object]
    asked: range = ALL


def _view(frame: Any) -> Any:
    frame.createOrReplaceTempView("evaluated")
    return frame.sparkSession.sql("SELECT r.result FROM evaluated WHERE r.input_hash > '8'").collect()


def _write_then_read_again(frame: Any, path: str) -> None:
    frame.write.parquet(path)
    frame.filter(f"{B} > '8'").select("r").collect()


def _cached(frame: Any, path: str) -> None:
    kept = frame.cache()
    try:
        kept.count()
        kept.filter(f"{B} > '8'").collect()
        kept.write.parquet(path)
    finally:
        kept.unpersist()


def _split(frame: Any) -> None:
    for part in frame.randomSplit([0.5, 0.5], seed=1):
        part.select("r").collect()


QUERIES = {
    "select a field": Query(lambda f, llm, p: f.select(A).collect()),
    "select two fields": Query(lambda f, llm, p: f.select(A, B).collect()),
    "select all fields": Query(lambda f, llm, p: f.select("r.*").collect()),
    "two columns from fields": Query(lambda f, llm, p: f.withColumn("a", F.col(A)).withColumn("b", F.col(B)).collect()),
    "when on a field": Query(lambda f, llm, p: f.select(F.when(F.col(B) > "8", F.col(A)).otherwise("-")).collect()),
    "explode": Query(lambda f, llm, p: f.select(F.explode(F.array(A))).collect()),
    "window": Query(lambda f, llm, p: f.select("id", F.row_number().over(Window.orderBy(A))).collect()),
    "groupBy": Query(lambda f, llm, p: f.groupBy(A).count().collect()),
    "dropDuplicates": Query(lambda f, llm, p: f.select(F.col(A).alias("a")).dropDuplicates(["a"]).collect()),
    "aggregate": Query(lambda f, llm, p: f.agg(F.max(A)).collect()),
    "filter (1.70)": Query(lambda f, llm, p: f.filter(f"{B} > '8'").select(A).collect()),
    "filter in a view (1.70)": Query(lambda f, llm, p: _view(f)),
    "filter on an expression (1.55)": Query(
        lambda f, llm, p: f.filter(F.concat(A, B) > "answer-8").select(A).collect()
    ),
    "join on a field (2.0)": Query(
        lambda f, llm, p: f.join(
            f.sparkSession.range(20).select(F.sha2(F.col("id").cast("string"), 256).alias("k")),
            F.col(B) == F.col("k"),
            "left",
        ).collect()
    ),
    "filter on another column (0.25)": Query(lambda f, llm, p: f.filter("id < 5").collect(), PUSHED),
    "the same expression twice": Query(
        lambda f, llm, p: f.select(llm("text").alias("x"), llm("text").alias("y")).collect()
    ),
    "when around the call": Query(lambda f, llm, p: f.select(F.when(F.col("id") < 5, llm("text"))).collect()),
    "orderBy another column (2.0)": Query(lambda f, llm, p: f.orderBy("id").collect()),
    "orderBy a field (2.0)": Query(lambda f, llm, p: f.orderBy(A).collect()),
    "repartitionByRange and write (2.0)": Query(lambda f, llm, p: f.repartitionByRange(2, A).write.parquet(p)),
    "write": Query(lambda f, llm, p: f.write.parquet(p)),
    "write partitioned": Query(
        lambda f, llm, p: f.select("id", F.col(A).substr(1, 7).alias("a"), "r").write.partitionBy("a").parquet(p)
    ),
    "repartition": Query(lambda f, llm, p: f.repartition(3).collect()),
    "coalesce": Query(lambda f, llm, p: f.coalesce(1).collect()),
    "sortWithinPartitions": Query(lambda f, llm, p: f.sortWithinPartitions(A).collect()),
    "toLocalIterator": Query(lambda f, llm, p: list(f.toLocalIterator())),
    "toPandas": Query(lambda f, llm, p: f.select(A).toPandas()),
    "count (0)": Query(lambda f, llm, p: f.count(), NONE),
    "isEmpty (0)": Query(lambda f, llm, p: f.isEmpty(), NONE),
    "select without it (0)": Query(lambda f, llm, p: f.select("id").collect(), NONE),
    "write, then a filter (2.0)": Query(lambda f, llm, p: _write_then_read_again(f, p)),
    "randomSplit (2.0)": Query(lambda f, llm, p: _split(f)),
    "self union (2.0)": Query(lambda f, llm, p: f.union(f).collect()),
    "self join (2.0)": Query(lambda f, llm, p: f.alias("l").join(f.alias("r2"), "id").collect()),
    "cache": Query(lambda f, llm, p: _cached(f, p)),
    "localCheckpoint": Query(lambda f, llm, p: f.localCheckpoint().filter(f"{B} > '8'").collect()),
    "limit (0.15)": Query(lambda f, llm, p: f.limit(3).collect(), range(3, 4)),
    "show (0.20)": Query(lambda f, llm, p: f.show(3), range(3, 5)),
    "head (0.05)": Query(lambda f, llm, p: f.head(1), range(1, 2)),
    "rdd.isEmpty (0.5)": Query(lambda f, llm, p: f.rdd.isEmpty(), FEW),
}
#: What changes where Spark may not take the column for deterministic; its engine answers an equal input once all the same.
NOT_DETERMINISTIC = {
    "filter (1.70)": ALL,
    "filter on another column (0.25)": ALL,
    "the same expression twice": ALL,
    "orderBy a field (2.0)": ALL,
    "self union (2.0)": ALL,
    "count (0)": NONE,
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return CountingModel(tmp_path_factory.mktemp("evaluations") / "engine.log")


def _asked(spark, engine, name, path, label):
    """The prompts of one query, whose texts no other query has."""
    marker = f"<{name}|{label.deterministic}>"
    texts = spark.range(0, ROWS, 1, 2).select("id", F.concat(F.lit(marker), F.col("id").cast("string")).alias("text"))
    QUERIES[name].run(texts.withColumn("r", label("text")), label, path)
    return [prompt for prompt in engine.prompts.elements() if marker in prompt]


@pytest.mark.parametrize("name", QUERIES)
def test_each_distinct_input_is_asked_once_by(spark, engine, tmp_path, name):
    asked = _asked(spark, engine, name, str(tmp_path / "out"), llm_udf(model=engine.uri, fail_on_error=False))
    assert len(asked) == len(set(asked))
    assert len(asked) in QUERIES[name].asked
    assert engine.loads <= 1


@pytest.mark.parametrize("name", NOT_DETERMINISTIC)
def test_each_distinct_input_is_asked_once_where_spark_counts_it_as_non_deterministic_by(spark, engine, tmp_path, name):
    label = llm_udf(model=engine.uri, fail_on_error=False).asNondeterministic()
    asked = _asked(spark, engine, name, str(tmp_path / "out"), label)
    assert len(asked) == len(set(asked))
    assert len(asked) in NOT_DETERMINISTIC[name]
