"""``llm_udf`` in its three forms over the fake engine: columns in, answers or the whole struct out."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from sparkinfer import llm_udf
from sparkinfer.schema import result_ddl


def _answers(frame, column):
    return {row["id"]: row["r"] for row in frame.withColumn("r", column).select("id", "r").collect()}


@pytest.fixture(scope="module")
def reviews(spark):
    rows = [(1, "good"), (2, None), (3, ""), (4, "  "), (5, "bad"), (6, "good")]
    return spark.createDataFrame(rows, "id int, text string").repartition(2).cache()


BUFFER = "spark.sql.execution.pandas.udf.buffer.size"


def test_straight_on_a_column_with_the_model_of_the_session(spark, reviews, model):
    spark.conf.set("spark.sparkinfer.model", model.with_options(answer="yes").uri)
    try:
        column = llm_udf(F.col("text"))
    finally:
        spark.conf.unset("spark.sparkinfer.model")
    frame = reviews.withColumn("r", column)
    assert frame.schema["r"].dataType == StringType()
    assert _answers(reviews, column) == {1: "yes", 2: None, 3: "yes", 4: "yes", 5: "yes", 6: "yes"}


def test_the_struct_has_the_names_the_order_and_the_types_of_the_design(spark, reviews, model):
    label = llm_udf(model=model.uri, fail_on_error=False)
    column = reviews.withColumn("r", label("text")).schema["r"]
    expected = spark.sql(f"SELECT CAST(null AS {result_ddl()}) AS r").schema["r"].dataType
    assert column.dataType == expected
    with_logprobs = llm_udf(model=model.uri, fail_on_error=False, logprobs=1)
    expected = spark.sql(f"SELECT CAST(null AS {result_ddl(logprobs=True)}) AS r").schema["r"].dataType
    assert reviews.withColumn("r", with_logprobs("text")).schema["r"].dataType == expected


def test_every_field_of_the_struct_says_what_ran(spark, reviews, model):
    label = llm_udf(model=model.with_options(answer="yes").uri, fail_on_error=False, logprobs=1)
    found = _answers(reviews, label("text"))
    row = found[1]
    resolved = label.resolve()
    assert (row.result, row.errorMessage, row.errorCode, row.finish_reason) == ("yes", None, None, "stop")
    assert (row.completion_tokens, row.cached_tokens, row.attempts, row.engine) == (3, 0, 1, "fake")
    assert row.prompt_tokens > len("good")
    assert (row.model_name, row.model_version) == ("fake", resolved.engine.model.version)
    assert row.config_hash == resolved.task.config_hash
    assert row.input_hash == found[6].input_hash != found[5].input_hash
    assert row.inferred_at is not None
    assert (row.warnings, row.logprobs) == ([], [0.0, 0.0, 0.0])


def test_a_null_row_is_skipped_and_a_blank_one_is_asked(reviews, model):
    found = _answers(reviews, llm_udf(model=model.uri, fail_on_error=False)("text"))
    assert found[2] is not None, "the struct itself is never null"
    assert (found[2].result, found[2].finish_reason, found[2].errorCode) == (None, "skipped", None)
    assert (found[2].attempts, found[2].prompt_tokens, found[2].inferred_at) == (0, 0, None)
    assert found[3].finish_reason == found[4].finish_reason == "stop"
    assert model.requests == 4  # good, bad, empty, two blanks; "good" once
    assert not any("None" in prompt or "nan" in prompt for prompt in model.prompts)


def test_blank_rows_are_skipped_where_asked(reviews, model):
    found = _answers(reviews, llm_udf(model=model.uri, skip_blank=True)("text"))
    assert [found[i] for i in (2, 3, 4)] == [None, None, None]
    assert model.requests == 2


def test_several_columns_by_place_by_name_and_in_sql_give_the_same(spark, model):
    rows = [(1, "t", None, 7, True, date(2024, 2, 29), Decimal("1.50")), (2, None, None, None, None, None, None)]
    frame = spark.createDataFrame(rows, "id int, a string, b string, n int, flag boolean, day date, price decimal(5,2)")
    label = llm_udf(model=model.uri, prompt="{b}{{}}|{a}|{n}|{flag}|{day}|{price}|{a}", fail_on_error=False)
    spark.udf.register("label_six", label)
    frame.createOrReplaceTempView("six")
    by_place = _answers(frame, label("b", "a", "n", "flag", "day", "price"))
    by_name = _answers(frame, label("b", price=F.col("price"), day="day", a="a", flag="flag", n="n"))
    in_sql = {r.id: r.r for r in spark.sql("SELECT id, label_six(b, a, n, flag, day, price) AS r FROM six").collect()}
    assert by_place == by_name == in_sql
    assert (by_place[1].finish_reason, by_place[2].finish_reason) == ("stop", "skipped")
    (prompt,) = model.prompts
    assert "{}|t|7|true|2024-02-29|1.50|t" in prompt


def test_a_registered_udf_takes_params_last(spark, reviews, model):
    spark.udf.register("cut", llm_udf(model=model.with_options(answer="abcdef").uri))
    reviews.createOrReplaceTempView("reviews")
    found = spark.sql("SELECT cut(text, struct(2 AS max_tokens)) AS r FROM reviews WHERE id = 1").first()
    assert found.r == "ab"


def test_params_of_a_row_go_over_the_tasks_and_into_the_input_hash(reviews, model):
    label = llm_udf(model=model.with_options(answer="abcdef").uri, fail_on_error=False, max_tokens=4)
    params = F.struct(F.when(F.col("id") == 1, 2).alias("max_tokens"), F.lit(None).cast("double").alias("temperature"))
    found = _answers(reviews, label(text="text", params=params))
    assert (found[1].result, found[1].finish_reason) == ("ab", "length")
    assert (found[6].result, found[6].finish_reason) == ("abcd", "length")
    assert found[1].input_hash != found[6].input_hash


def test_wrong_params_are_the_rows_error(reviews, model):
    label = llm_udf(model=model.uri, fail_on_error=False)
    wrong = F.struct(F.when(F.col("id") == 1, -1).otherwise(5).alias("max_tokens"))
    found = _answers(reviews, label("text", params=wrong))
    assert (found[1].errorCode, found[1].result, found[1].finish_reason) == ("INVALID_PARAMS", None, "error")
    assert found[5].errorCode is None


def test_a_failed_row_is_data_beside_the_good_ones(reviews, model):
    label = llm_udf(model=model.with_options(fail="bad").uri, fail_on_error=False)
    found = _answers(reviews, label("text"))
    assert (found[5].result, found[5].errorCode) == (None, "INFERENCE_FAILED")
    assert "refused this row" in found[5].errorMessage
    assert [found[i].errorCode for i in (1, 3, 4, 6)] == [None] * 4


@pytest.mark.parametrize("fail_on_error", [None, True])
def test_a_failed_row_fails_a_plain_column_with_its_code_and_hash(reviews, model, fail_on_error):
    fake = model.with_options(fail="bad")
    good = _answers(reviews, llm_udf(model=fake.uri, fail_on_error=False)("text"))
    with pytest.raises(PythonException) as raised:
        _answers(reviews, llm_udf(model=fake.uri, fail_on_error=fail_on_error)("text"))
    assert "[INFERENCE_FAILED] The fake engine refused this row." in str(raised.value)
    assert good[5].input_hash in str(raised.value)
    assert "fail_on_error=False" in str(raised.value)


def test_an_engine_that_cannot_start_fails_the_task_with_its_own_words(reviews, model):
    label = llm_udf(model=model.with_options(load_error="no such weights").uri, fail_on_error=False)
    with pytest.raises(PythonException, match="no such weights"):
        reviews.withColumn("r", label("text")).collect()


def test_text_that_is_no_utf8_is_asked_with_replacement_and_flagged(spark, model):
    frame = spark.sql("SELECT 1 AS id, cast(X'6f6bff' AS string) AS text")
    found = _answers(frame, llm_udf(model=model.uri, fail_on_error=False)("text"))
    assert found[1].warnings == ["INVALID_UTF8"]
    assert found[1].errorCode is None
    assert any("ok\ufffd" in prompt for prompt in model.prompts)


def test_a_column_without_an_exact_text_is_refused_before_an_engine_starts(spark, model):
    frame = spark.createDataFrame([(1, 0.5)], "id int, score double")
    with pytest.raises(PythonException, match=r"WRONG_COLUMN_TYPE.*cast it to string"):
        _answers(frame, llm_udf(model=model.uri)("score"))
    assert model.loads == 0


def test_only_a_udf_without_seed_that_draws_is_not_deterministic_for_spark(model):
    drawn = llm_udf(model=model.uri, temperature=1.0, seed=None)
    assert not drawn.deterministic
    assert llm_udf(model=model.uri, temperature=1.0).deterministic
    assert llm_udf(model=model.uri, seed=None).deterministic
    assert not llm_udf(model=model.uri).asNondeterministic().deterministic


def test_the_inline_engine_gives_the_same_answers(reviews, model):
    def essence(found):
        return {i: (r.result, r.finish_reason, r.input_hash, r.config_hash, r.prompt_tokens) for i, r in found.items()}

    shared = _answers(reviews, llm_udf(model=model.uri, fail_on_error=False)("text"))
    inline = _answers(reviews, llm_udf(model=model.uri, fail_on_error=False, engine_mode="inline")("text"))
    assert essence(shared) == essence(inline)


def test_workers_import_neither_torch_nor_transformers_nor_mlflow(spark, reviews, model):
    size = spark.conf.get(BUFFER)
    spark.conf.set(BUFFER, "2048")  # another environment, so workers of its own: an inline engine ran in the others
    try:
        answered = reviews.withColumn("r", llm_udf(model=model.uri)("text")).coalesce(1)
        found = answered.mapInArrow(_heavy_modules, "modules string").collect()
    finally:
        spark.conf.set(BUFFER, size)
    assert [row.modules for row in found] == [""]


def _heavy_modules(batches):
    import sys

    import pyarrow as pa

    from sparkinfer.udf.worker import WorkerTask

    assert WorkerTask, "the worker has what the UDF needs"
    import sparkinfer.host

    assert sparkinfer.host.connect
    for _ in batches:
        pass
    heavy = sorted(
        {name.partition(".")[0] for name in sys.modules} & {"torch", "transformers", "mlflow", "numba", "jinja2"}
    )
    yield pa.RecordBatch.from_pydict({"modules": [",".join(heavy)]})
