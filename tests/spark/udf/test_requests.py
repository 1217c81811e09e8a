"""Loads and requests over many partitions and UDF objects; test_evaluations.py and tests/cases have the plans that evaluate twice."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from sparkinfer import llm_udf

DISTINCT = 20


@pytest.fixture(scope="module")
def rows(spark):
    return (
        spark.createDataFrame([(i, f"text {i % DISTINCT}") for i in range(40)], "id int, text string")
        .repartition(8)
        .cache()
    )


def test_one_load_and_one_request_an_input_over_many_partitions_and_udf_objects(rows, model):
    for max_tokens in (16, 16, 32):
        label = llm_udf(model=model.uri, max_tokens=max_tokens)
        assert len(rows.withColumn("r", label("text")).collect()) == 40
    assert model.loads == 1
    assert model.requests == 2 * DISTINCT, "the same settings again ask nothing, other settings ask anew"


def test_a_partition_of_thousands_comes_out_whole_and_in_order(spark, model):
    many = spark.range(0, 6000, 1, 1).select("id", F.concat(F.lit("text "), F.col("id") % 50).alias("text"))
    out = many.withColumn("r", llm_udf(model=model.uri)("text")).collect()
    assert [row.id for row in out] == list(range(6000))
    assert len({(row.text, row.r) for row in out}) == model.requests == 50
