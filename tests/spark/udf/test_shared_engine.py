"""Sessions and models on one executor: one engine a model, whoever asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkinfer import llm_udf
from tests.support.counting import CountingModel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_two_sessions_share_one_engine_and_its_answers(spark: SparkSession, tmp_path: Path) -> None:
    model = CountingModel(tmp_path / "fake.jsonl")

    def ask(session: SparkSession) -> int:
        label = llm_udf(model=model.uri, prompt="Say {text}")
        texts = session.range(40).select(F.concat(F.lit("text "), F.col("id").cast("string")).alias("text"))
        return len(texts.repartition(2).select(label(F.col("text"))).collect())

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, [spark, spark.newSession()])) == [40, 40]
    assert (model.loads, model.requests) == (1, 40)


def test_two_models_in_one_query_have_an_engine_each(spark: SparkSession, tmp_path: Path) -> None:
    one = CountingModel(tmp_path / "one.jsonl", "&answer=one")
    two = CountingModel(tmp_path / "two.jsonl", "&answer=two")
    first, second = (llm_udf(model=model.uri, prompt="Say {text}") for model in (one, two))
    texts = spark.range(20).select(F.col("id").cast("string").alias("text")).repartition(2)
    rows = texts.select(first(F.col("text")).alias("first"), second(F.col("text")).alias("second")).collect()
    assert {(row["first"], row.second) for row in rows} == {("one", "two")}
    assert (one.loads, one.requests, two.loads, two.requests) == (1, 20, 1, 20)
