"""Keys: the byte format written down in the docstring, and what does and does not change them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest

from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import EngineSpec, TaskSpec
from sparkinfer.hashing import (
    ABSENT,
    InputHasher,
    canonical_json,
    config_hash,
    config_of,
    float_hex,
    input_hash,
    row_key,
)
from sparkinfer.types import ModelRef, SamplingParams

MODEL = ModelRef(uri="sample", name="m", version="v", fingerprint="f" * 64, kind="sample", location="sample")
ENGINE = EngineSpec(model=MODEL)
TASK = TaskSpec(prompt="{text}", names=("text",))


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_an_input_is_hashed_as_documented() -> None:
    assert input_hash(["text"], [b"ok"], "s") == sha(b"4:texts2:ok")
    assert input_hash(["text"], [None], "0") == sha(b"4:text0")
    assert input_hash(["text"], [b"ok"], "s", b'{"max_tokens":16}') == sha(b'4:texts2:ok6:paramsp17:{"max_tokens":16}')
    assert input_hash(["text"], [b"ok"], "s", None) == sha(b"4:texts2:ok6:params0")
    assert input_hash(["naïve", "n"], ["é".encode(), b"5"], "si") == sha("6:naïves2:é1:ni1:5".encode())
    assert row_key(["id"], [b"5"], "i") == sha(b"2:idi1:5")


def test_bytes_that_are_no_utf8_are_hashed_as_they_are() -> None:
    assert input_hash(["t"], [b"\xff\x00"], "s") == sha(b"1:ts2:\xff\x00")


def test_null_empty_type_and_place_all_make_a_difference() -> None:
    keys = [
        input_hash(["a", "b"], [None, b""], "0s"),
        input_hash(["a", "b"], [b"", None], "s0"),
        input_hash(["a", "b"], [b"", b""], "ss"),
        input_hash(["b", "a"], [b"", b""], "ss"),
        input_hash(["a", "b"], [b"1", b""], "ss"),
        input_hash(["a", "b"], [b"1", b""], "is"),
        input_hash(["a", "b"], [b"1", b""], "is", None),
        input_hash(["a", "b"], [b"1", b""], "is", b"{}"),
        input_hash(["a", "b"], [b"", b"1"], "si"),
    ]
    assert len(set(keys)) == len(keys)


def test_the_tag_of_a_null_is_not_looked_at() -> None:
    assert input_hash(["a"], [None], "s") == input_hash(["a"], [None], "0")


def test_a_hasher_refuses_another_number_of_values() -> None:
    with pytest.raises(ValueError, match="argument"):
        InputHasher(["a", "b"]).digest([b"x"], "s")


def test_absent_params_say_so() -> None:
    assert repr(ABSENT) == "ABSENT"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "0x1.0p0"),
        (1.5, "0x1.8p0"),
        (0.1, "0x1.999999999999ap-4"),
        (-0.125, "-0x1.0p-3"),
        (0.0, "0x0.0p0"),
        (-0.0, "-0x0.0p0"),
        (5e-324, "0x0.0000000000001p-1022"),
        (1.7976931348623157e308, "0x1.fffffffffffffp1023"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_a_float_is_its_bits_as_java_prints_them(value: float, text: str) -> None:
    assert float_hex(value) == text


def test_canonical_json_is_sorted_dense_and_exact() -> None:
    assert canonical_json({"b": [1, 0.5, None, True], "a": "é\n"}) == '{"a":"é\\n","b":[1,"0x1.0p-1",null,true]}'


def test_control_characters_are_escaped_as_spark_escapes_them() -> None:
    assert canonical_json("\x1f\x7f\\u001f") == '"\\u001F\x7f\\\\u001f"'
    assert json.loads(canonical_json("\x0e\\\x1b")) == "\x0e\\\x1b"


def test_what_json_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError):
        canonical_json({"a": object()})


def test_params_from_canonical_json_are_the_same_params() -> None:
    params = SamplingParams(temperature=0.1, top_p=0.3, min_p=0.7, presence_penalty=-1.1, max_tokens=3, stop=("x",))
    assert SamplingParams().merged(canonical_json(params.to_dict())) == params


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "{text}!"},
        {"system": "s"},
        {"choices": ("a", "b")},
        {"sampling": SamplingParams(temperature=0.5)},
        {"sampling": SamplingParams(max_tokens=9)},
        {"on_overflow": "truncate_left"},
        {"skip_blank": True},
        {"template_kwargs": {"enable_thinking": False}},
        {"clock": "2026-01-02"},
    ],
)
def test_what_can_change_an_answer_changes_the_config_hash(change: dict[str, Any]) -> None:
    changed = config_of(ENGINE, dataclasses.replace(TASK, **change))
    assert config_hash(changed) != config_hash(config_of(ENGINE, TASK))


@pytest.mark.parametrize(
    "engine",
    [
        dataclasses.replace(ENGINE, dtype="bf16"),
        dataclasses.replace(ENGINE, model=dataclasses.replace(MODEL, fingerprint="e" * 64)),
        dataclasses.replace(ENGINE, settings=EngineSettings(max_model_len=100)),
        dataclasses.replace(ENGINE, trust_remote_code=True),
    ],
)
def test_another_model_or_dtype_changes_the_config_hash(engine: EngineSpec) -> None:
    assert config_hash(config_of(engine, TASK)) != config_hash(config_of(ENGINE, TASK))


@pytest.mark.parametrize(
    ("engine", "task"),
    [
        (ENGINE, dataclasses.replace(TASK, priority=5)),
        (ENGINE, dataclasses.replace(TASK, progress_dir="somewhere")),
        (ENGINE, dataclasses.replace(TASK, config_hash="old")),
        (dataclasses.replace(ENGINE, settings=EngineSettings(max_batch_size=3, kv_memory=1)), TASK),
        (dataclasses.replace(ENGINE, model=dataclasses.replace(MODEL, uri="other", location="else", name="n")), TASK),
    ],
)
def test_what_only_changes_when_and_where_does_not(engine: EngineSpec, task: TaskSpec) -> None:
    assert config_hash(config_of(engine, task)) == config_hash(config_of(ENGINE, TASK))


def test_a_config_hash_does_not_change_with_a_release() -> None:
    # A change of this value makes every stored answer be computed again: only with ANSWER_VERSION, and on purpose.
    expected = "55f0ed406fb1f31606332d1b24470ffb2ef8c22d6dd7de5bdc5e1226d29744c2"
    assert config_hash(config_of(ENGINE, TASK)) == expected
