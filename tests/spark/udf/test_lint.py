"""The linter on real plans, in a session that is told it has several executors."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from sparkinfer import lint, llm_udf

SORT, APART, ONE_TASK = "below a sort", "times a row", "single task"


def _texts(spark: Any) -> Any:
    return spark.range(0, 20, 1, 2).select("id", F.concat(F.lit("x"), F.col("id").cast("string")).alias("text"))


def _view(frame: Any) -> Any:
    frame.sparkSession.udf.register("label", llm_udf(model="fake:"))
    frame.createOrReplaceTempView("linted")
    return frame.sparkSession.sql("SELECT label(text) FROM linted ORDER BY 1")


#: Queries -> what stands in their findings where each executor has a memo of its own.
QUERIES = {
    "a column": (lambda f: f, []),
    "a filter on the answer": (lambda f: f.filter("r.input_hash > '8'").select("r.result"), []),
    "a group by the answer": (lambda f: f.groupBy("r.result").count(), []),
    "limit": (lambda f: f.limit(3), []),
    "a sort by another column": (lambda f: f.orderBy("id"), [SORT]),
    "a sort by the answer": (lambda f: f.orderBy("r.result"), [SORT]),
    "a sort in SQL": (_view, [SORT]),
    "a union with itself": (lambda f: f.union(f), [APART]),
    "a join with itself": (lambda f: f.alias("a").join(f.alias("b"), "id"), [APART]),
    "a join with another table": (
        lambda f: f.join(f.sparkSession.range(3).withColumnRenamed("id", "k"), F.col("k") == F.col("id")),
        [],
    ),
    "text by a column": (
        lambda f: f.select("text").repartition("text").select(llm_udf("text", model="fake:")),
        [ONE_TASK],
    ),
    "distinct texts": (lambda f: f.select("text").distinct().select(llm_udf("text", model="fake:")), [ONE_TASK]),
    "so many partitions": (
        lambda f: f.select("text").repartition(4, "text").select(llm_udf("text", model="fake:")),
        [],
    ),
}


@pytest.mark.parametrize("name", QUERIES)
def test_the_linter_finds_what_a_memo_of_each_executor_does_not_cover(
    spark: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("sparkinfer.udf.lint._has_one_executor", lambda settings: False)
    frame = _texts(spark).withColumn("r", llm_udf(model="fake:", fail_on_error=False)("text"))
    query, expected = QUERIES[name]
    found = lint(query(frame))
    assert len(found) == len(expected), found
    assert all(part in sentence for part, sentence in zip(expected, found, strict=True))


@pytest.mark.parametrize("name", ["a column", "a sort by the answer", "a union with itself", "distinct texts"])
def test_a_query_that_has_run_is_judged_like_one_that_has_not(
    spark: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("sparkinfer.udf.lint._has_one_executor", lambda settings: False)
    frame = _texts(spark).withColumn("r", llm_udf(model="fake:", fail_on_error=False)("text"))
    query = QUERIES[name][0](frame)
    before = lint(query)
    query.collect()
    assert lint(query) == before


def test_one_executor_has_one_memo(spark: Any) -> None:
    frame = _texts(spark).withColumn("r", llm_udf(model="fake:", fail_on_error=False)("text"))
    assert lint(frame.orderBy("r.result")) == []
    assert lint(frame.union(frame)) == []


def test_what_is_cached_is_evaluated_no_more(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkinfer.udf.lint._has_one_executor", lambda settings: False)
    kept = _texts(spark).withColumn("r", llm_udf(model="fake:", fail_on_error=False)("text")).cache()
    try:
        assert lint(kept.orderBy("id")) == []
    finally:
        kept.unpersist()
