"""Field failures 15 to 19: nulls, messages, broken text and rows that fail, none of which may harm its neighbours."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from sparkinfer import llm_udf
from sparkinfer.config.specs import TaskSpec
from sparkinfer.errors import FailedRows
from sparkinfer.text.messages import parse_messages
from sparkinfer.text.tokenizer import ByteTokenizer
from sparkinfer.udf.pandas_expression import column_to_arrow
from sparkinfer.udf.reading import RowReader

NULLS = ["a", None, "", "  "]


def _answers(frame, column):
    return {row["id"]: row["r"] for row in frame.withColumn("r", column).select("id", "r").collect()}


def test_case_15_a_null_text_is_null_and_never_the_word_nan(spark, model):
    frame = spark.createDataFrame(list(enumerate(NULLS)), "id int, text string")
    found = _answers(frame, llm_udf(model=model.uri)("text"))
    assert found[1] is None
    assert all(found[i] for i in (0, 2, 3))
    assert model.requests == 3
    assert not any(word in prompt for prompt in model.prompts for word in ("nan", "None", "null"))


@pytest.mark.parametrize(
    "dtype",
    [object, pd.StringDtype("python"), pd.StringDtype("pyarrow", na_value=np.nan), pd.ArrowDtype(pa.string())],
    ids=["pandas 2", "nullable", "pandas 3", "arrow"],
)
def test_case_15_a_null_of_any_pandas_is_null_at_the_border(dtype):
    requests = RowReader(TaskSpec(prompt=None, names=("text",))).read(
        [column_to_arrow(pd.Series(NULLS, dtype=dtype))], 0
    )
    assert [request.values for request in requests] == [("a",), (None,), ("",), ("  ",)]
    assert [request.tags for request in requests] == ["s", "0", "s", "s"]


def test_case_15_one_text_of_a_megabyte_among_a_hundred_fails_alone(spark, model):
    rows = [(i, "x" * 1_000_000 if i == 50 else f"text {i}") for i in range(100)]
    frame = spark.createDataFrame(rows, "id int, text string").repartition(2)
    found = _answers(frame, llm_udf(model=model.uri, fail_on_error=False)("text"))
    assert {i: row.errorCode for i, row in found.items() if row.errorCode} == {50: "PROMPT_TOO_LONG"}
    assert found[50].result is None
    assert sum(row.result is not None for row in found.values()) == 99


MESSAGES = [
    None,
    [],
    [("user", None)],
    [("system", "be brief"), ("user", "hi"), ("assistant", "yo")],
    [(None, "x")],
]


def test_case_16_messages_are_rendered_as_the_chat_template_renders_plain_lists(spark, model):
    frame = spark.createDataFrame(
        list(enumerate(MESSAGES)), "id int, messages array<struct<role: string, content: string>>"
    )
    found = _answers(frame, llm_udf(model=model.uri, fail_on_error=False)("messages"))
    assert found[0].finish_reason == "skipped"
    assert found[1].errorCode == found[4].errorCode == "INVALID_MESSAGES"
    plain = [[{"role": r, "content": c} for r, c in MESSAGES[i] if r] for i in (2, 3)]
    template = ByteTokenizer()
    rendered = {
        template.chat(parse_messages(json.dumps(messages)), clock="2024-01-01", template_kwargs={})
        for messages in plain
    }
    assert set(model.prompts) == rendered
    assert any("system: be brief\nuser: hi\nassistant: yo" in prompt for prompt in model.prompts)


def test_case_16_the_arrays_that_pandas_makes_of_messages_become_plain_lists():
    as_in_a_worker = pd.Series(
        [
            None,
            np.array([], dtype=np.float64),
            np.array([{"role": "user", "content": None}], dtype=object),
            np.array(
                [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "b"},
                    {"role": "user", "content": "c"},
                ]
            ),
        ]
    )
    values = column_to_arrow(as_in_a_worker).to_pylist()
    assert values[:2] == [None, []]
    assert [bool(value) for value in values] == [False, False, True, True], "no array whose truth is ambiguous"
    assert json.loads(json.dumps(values[3])) == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    requests = RowReader(TaskSpec(prompt=None, names=("messages",))).read([column_to_arrow(as_in_a_worker)], 0)
    assert [request.tags for request in requests] == ["0", "m", "m", "m"]
    assert len(parse_messages(requests[3].values[0])) == 3


def test_case_17_a_null_result_stays_null_in_every_type(spark, model):
    frame = spark.createDataFrame([(0, "ok"), (1, None), (2, "ok too")], "id int, text string").coalesce(1)
    plain = frame.withColumn("r", llm_udf(model=model.uri)("text"))
    assert plain.schema["r"].dataType == StringType()
    assert [row.id for row in plain.filter("r is null").collect()] == [1]
    assert plain.filter("r in ('None', 'nan', 'null', '')").count() == 0
    struct = frame.withColumn("r", llm_udf(model=model.uri, fail_on_error=False, logprobs=1)("text"))
    row = (
        struct.filter("id = 1")
        .select("r.result", "r.logprobs", "r.errorMessage", "r.inferred_at", F.col("r").isNull().alias("gone"))
        .first()
    )
    assert row == (None, None, None, None, False)
    assert struct.filter("r.logprobs is null").count() == 1, "array<float> with a null between two values"


def test_case_17_a_null_result_is_null_in_the_result_table(job):
    job.run(job.frame([(0, "ok"), (1, None), (2, "ok too")]))
    assert [row.answer is None for row in job.rows()] == [False, True, False]
    assert [row.error_code for row in job.rows()] == [None] * 3


@pytest.mark.parametrize("engine_mode", ["shared", "inline"])
def test_case_18_an_answer_that_is_no_text_is_mended_and_flagged(spark, model, engine_mode):
    frame = spark.createDataFrame([(0, "garbage"), (1, "fine")], "id int, text string").coalesce(1)
    found = _answers(
        frame,
        llm_udf(model=model.with_options(garbage="garbage").uri, fail_on_error=False, engine_mode=engine_mode)("text"),
    )
    assert found[0].errorCode is None
    assert found[0].result.strip("\ufffd") == "ok", "bytes of a lone surrogate, a NUL, half a character"
    assert any(warning.startswith("INVALID_OUTPUT") for warning in found[0].warnings)
    assert found[1].warnings == []


def test_case_18_nul_and_half_an_emoji_are_replaced_and_flagged(spark, model):
    frame = spark.createDataFrame([(0, "x")], "id int, text string")
    nul = _answers(frame, llm_udf(model=model.with_options(answer="a\x00b").uri, fail_on_error=False)("text"))
    assert (nul[0].result, nul[0].errorCode) == ("a\ufffdb", None)
    assert any(warning.startswith("INVALID_OUTPUT") for warning in nul[0].warnings)
    half = _answers(
        frame, llm_udf(model=model.with_options(answer="ok😀").uri, fail_on_error=False, max_tokens=4)("text")
    )
    assert (half[0].result, half[0].finish_reason) == ("ok\ufffd", "length")
    assert any(warning.startswith("INVALID_OUTPUT") for warning in half[0].warnings)


def test_case_18_answers_that_are_no_text_are_written_to_the_table(job):
    job.options = "&garbage=garbage"
    job.run(job.frame([(0, "garbage"), (1, "fine")]))
    rows = job.rows()
    assert rows[0].answer.startswith("ok\ufffd")
    assert rows[0].warnings
    assert rows[1].error_code is None


@pytest.mark.parametrize(
    ("fault", "code"),
    [("refuse", "INVALID_MESSAGES"), ("late", "ROW_TIMEOUT"), ("fail", "INFERENCE_FAILED")],
    ids=["filter", "time-out", "failure"],
)
def test_case_19_one_failing_row_of_a_thousand_is_data(spark, model, fault, code):
    texts = spark.range(0, 1000, 1, 4).select(
        "id", F.concat(F.lit("<"), F.col("id").cast("string"), F.lit(">")).alias("text")
    )
    found = _answers(texts, llm_udf(model=model.with_options(**{fault: "<500>"}).uri, fail_on_error=False)("text"))
    assert {i: row.errorCode for i, row in found.items() if row.errorCode} == {500: code}
    assert found[500].errorMessage
    assert sum(row.result is not None for row in found.values()) == 999


def test_case_19_a_column_that_fails_on_errors_says_which_row_and_why(spark, model):
    frame = spark.createDataFrame([(0, "good"), (1, "bad")], "id int, text string").coalesce(1)
    fake = model.with_options(refuse="bad")
    wanted = _answers(frame, llm_udf(model=fake.uri, fail_on_error=False)("text"))[1]
    with pytest.raises(PythonException) as raised:
        _answers(frame, llm_udf(model=fake.uri, fail_on_error=True)("text"))
    for word in ("[INVALID_MESSAGES]", wanted.input_hash, "fail_on_error=False"):
        assert word in str(raised.value)


def test_case_19_a_job_that_fails_on_errors_commits_the_good_rows_first(job):
    job.options = "&refuse=text 3"
    with pytest.raises(FailedRows, match="INVALID_MESSAGES") as refused:
        job.run(job.frame([(i, f"text {i}") for i in range(8)]), fail_on_error=True)
    assert "at key 3 " in refused.value.message
    rows = job.rows()
    assert [row.id for row in rows if row.error_code is None] == [0, 1, 2, 4, 5, 6, 7]
    assert (rows[3].error_code, rows[3].answer) == ("INVALID_MESSAGES", None)
