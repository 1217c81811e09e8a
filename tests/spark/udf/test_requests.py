"""How often the engine is asked: each distinct input once on an executor, whatever plan Spark makes of the column."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from sparkinfer import llm_udf

DISTINCT = 20


@pytest.fixture(scope="module")
def rows(spark):
    return spark.createDataFrame([(i, f"text {i % DISTINCT}") for i in range(40)], "id int, text string").repartition(8).cache()


def test_one_load_and_one_request_an_input_over_many_partitions_and_udf_objects(rows, model):
    for max_tokens in (16, 16, 32):
        label = llm_udf(model=model.uri, max_tokens=max_tokens)
        assert len(rows.withColumn("r", label("text")).collect()) == 40
    assert model.loads == 1
    assert model.requests == 2 * DISTINCT, "the same settings again ask nothing, other settings ask anew"


PLANS = {
    "a filter on the result": lambda frame, path: frame.filter("r.result > 'answer-5'").select("r.result", "r.input_hash").collect(),
    "an order by the result": lambda frame, path: frame.orderBy("r.result", "id").collect(),
    "a group by the result": lambda frame, path: frame.groupBy("r.result").count().collect(),
    "a join on the result": lambda frame, path: frame.join(frame.select(F.col("r.result").alias("key")).distinct(), F.col("r.result") == F.col("key")).collect(),
    "a write, then a read of the column again": lambda frame, path: (frame.write.parquet(path), frame.filter("r.result is not null").count()),
}


@pytest.mark.parametrize("plan", PLANS)
def test_each_input_is_asked_once_under(rows, model, tmp_path, plan):
    answered = rows.withColumn("r", llm_udf(model=model.uri, fail_on_error=False)("text"))
    PLANS[plan](answered, str(tmp_path / "out"))
    assert model.requests == DISTINCT
    assert model.loads == 1


def test_the_same_column_twice_in_a_select_is_asked_once_and_equal(rows, model):
    label = llm_udf(model=model.uri, fail_on_error=False)
    twice = rows.select(label("text").alias("a"), label("text").alias("b"), F.col("id"))
    assert all(row.a == row.b for row in twice.collect())
    assert model.requests == DISTINCT


def test_a_second_evaluation_gives_the_identical_struct(rows, model):
    answered = rows.withColumn("r", llm_udf(model=model.uri, fail_on_error=False)("text"))
    assert sorted(answered.collect()) == sorted(answered.collect())


def test_empty_partitions_and_rows_of_nulls_start_no_engine(spark, model):
    label = llm_udf(model=model.uri, fail_on_error=False)
    empty = spark.createDataFrame([], "text string").withColumn("r", label("text"))
    assert empty.collect() == []
    nulls = spark.createDataFrame([(None,)] * 50, "text string").repartition(8)
    assert [row.r.finish_reason for row in nulls.withColumn("r", label("text")).collect()] == ["skipped"] * 50
    assert nulls.limit(0).withColumn("r", label("text")).schema["r"].dataType == empty.schema["r"].dataType
    assert model.loads == 0
    one = spark.createDataFrame([("a",)], "text string").repartition(8)
    assert one.withColumn("r", label("text")).count() == 1, "a count needs no answers"
    assert len(one.withColumn("r", label("text")).collect()) == 1
    assert (model.loads, model.requests) == (1, 1)


@pytest.mark.parametrize(
    "read",
    [
        lambda frame: frame.limit(5).collect(),
        lambda frame: frame.show(5),
        lambda frame: frame.head(1),
        pytest.param(
            lambda frame: frame.filter("r.result is not null").limit(5).collect(),
            marks=pytest.mark.xfail(reason="known defect: with a filter on the result below the limit all rows are asked", strict=False),
        ),
    ],
    ids=["limit", "show", "head", "filter and limit"],
)
def test_who_reads_five_rows_of_a_thousand_pays_for_at_most_64(spark, model, read):
    many = spark.range(1000).select(F.concat(F.lit("text "), F.col("id")).alias("text")).repartition(2)
    read(many.withColumn("r", llm_udf(model=model.uri, fail_on_error=False)("text")))
    assert 1 <= model.requests <= 64


def test_a_partition_of_thousands_comes_out_whole_and_in_order(spark, model):
    many = spark.range(0, 6000, 1, 1).select("id", F.concat(F.lit("text "), F.col("id") % 50).alias("text"))
    out = many.withColumn("r", llm_udf(model=model.uri)("text")).collect()
    assert [row.id for row in out] == list(range(6000))
    assert len({(row.text, row.r) for row in out}) == model.requests == 50
