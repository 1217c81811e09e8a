"""Completions as Arrow: the struct's names and types, and nothing that Arrow or Spark cannot hold."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from sparkinfer.config.specs import EngineSpec, TaskSpec
from sparkinfer.errors import PromptTooLong, RowError
from sparkinfer.host.columns import arrow_safe, column
from sparkinfer.schema import RESULT_FIELDS, result_fields
from sparkinfer.types import Completion, FinishReason, ModelRef, Usage
from sparkinfer.udf.answers import AnswerWriter

MODEL = ModelRef(uri="m", name="m", version="v1", fingerprint="f", kind="fake", location="fake")


def _writer(*, is_struct: bool, logprobs: bool = False) -> AnswerWriter:
    task = TaskSpec(prompt=None, names=("text",), config_hash="c" * 64)
    return AnswerWriter(EngineSpec(model=MODEL), task, is_struct=is_struct, logprobs=logprobs)


FULL = Completion(
    row=0,
    input_hash="h",
    result="yes",
    raw_text="yes!",
    warnings=("INVALID_UTF8",),
    usage=Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=1),
    queue_ms=1,
    latency_ms=2,
    engine="fake",
    inferred_at=1_700_000_000.25,
    details={"k": "v"},
    logprobs=(-0.5,),
)


def test_the_struct_holds_every_field_in_the_designs_order():
    array = _writer(is_struct=True, logprobs=True).write([FULL])
    assert [field.name for field in array.type] == [field.name for field in result_fields(logprobs=True)]
    row = array.to_pylist()[0]
    assert row["result"] == "yes"
    assert row["raw_text"] == "yes!"
    assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (5, 2, 1)
    assert (row["model_name"], row["model_version"], row["config_hash"]) == ("m", "v1", "c" * 64)
    assert row["inferred_at"].isoformat() == "2023-11-14T22:13:20.250000+00:00"
    assert row["details"] == [("k", "v")]
    assert row["logprobs"] == [-0.5]


def test_nulls_stay_null_and_the_struct_is_never_null():
    failed = Completion(row=1, input_hash="h", error_code="X", error_message="m", finish_reason=FinishReason.ERROR)
    array = _writer(is_struct=True).write([failed, FULL, failed])
    assert array.null_count == 0
    assert len(array.type) == len(RESULT_FIELDS)
    assert [row["result"] for row in array.to_pylist()] == [None, "yes", None]
    assert _writer(is_struct=False).write([Completion(row=0, input_hash="h"), FULL]).to_pylist() == [None, "yes"]


def test_a_plain_column_raises_the_rows_own_error_with_its_hash():
    failed = Completion(row=1, input_hash="abc", error_code="PROMPT_TOO_LONG", error_message="Too long.")
    with pytest.raises(PromptTooLong, match=r"Too long.*abc"):
        _writer(is_struct=False).write([FULL, failed])


def test_a_code_that_this_version_does_not_know_is_still_a_row_error():
    failed = Completion(row=1, input_hash="abc", error_code="NEW_CODE", error_message="?")
    with pytest.raises(RowError, match="NEW_CODE"):
        _writer(is_struct=False).write([failed])


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("ok\ud83d", "ok\ufffd"),
        ("\ud83d\ude42", "🙂"),
        ("\ude42\ud83d", "\ufffd\ufffd"),
        ("a\x00b", "a\x00b"),
        (None, None),
        ("ä", "ä"),
    ],
)
def test_lone_surrogates_become_the_replacement_character(text, safe):
    assert arrow_safe(text) == safe
    assert column(pa.string(), [text]).to_pylist() == [safe]


def test_a_mended_answer_is_flagged():
    broken = Completion(row=0, input_hash="h", result="ok\ud83d")
    row = _writer(is_struct=True).write([broken]).to_pylist()[0]
    assert row["result"] == "ok\ufffd"
    assert row["warnings"] == ["INVALID_OUTPUT_TEXT"]


@pytest.mark.parametrize("is_struct", [True, False])
def test_reading_and_writing_do_not_need_pandas(is_struct):
    task = TaskSpec(prompt=None, names=("text",))
    program = (
        "import sys, pyarrow as pa; from sparkinfer.host.columns import column; from sparkinfer.udf.worker import WorkerTask\n"
        f"task = WorkerTask(engine_json={EngineSpec(model=MODEL).to_json()!r}, task_json={task.to_json()!r}, is_struct={is_struct})\n"
        "(answers,) = task.answers(iter([column(pa.string(), [None, None])]))\n"
        "assert len(answers) == 2\n"
        "print(*{'pandas', 'torch', 'transformers', 'pyspark', 'mlflow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
