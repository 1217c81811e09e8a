"""The shared nouns check themselves."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from sparkinfer.errors import InvalidParams
from sparkinfer.types import Completion, FinishReason, SamplingParams


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"max_tokens": "16"},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_k": -1},
        {"min_p": 2},
        {"seed": 2**63},
        {"seed": "x"},
        {"logprobs": 21},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 2.5},
        {"frequency_penalty": -3},
        {"ignore_eos": 1},
        {"stop": ("",)},
        {"stop": (3,)},
        {"stop": 3},
        {"stop": {"a"}},
        {"stop": {"a": 1}},
    ],
)
def test_a_wrong_parameter_is_refused_by_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_stop_may_be_one_string_a_list_or_nothing() -> None:
    stops: list[Any] = ["x", ["x"], None]
    assert [SamplingParams(stop=stop).stop for stop in stops] == [("x",), ("x",), ()]


def test_greedy_or_seeded_sampling_is_deterministic() -> None:
    assert SamplingParams(seed=None).is_deterministic
    assert SamplingParams(temperature=1.0).is_deterministic
    assert not SamplingParams(temperature=1.0, seed=None).is_deterministic
    assert not SamplingParams(temperature=1.0).is_greedy


def test_params_survive_json() -> None:
    params = SamplingParams(stop=("a", "b"), temperature=0.3, repetition_penalty=1.1, logprobs=2, seed=None)
    assert SamplingParams.from_dict(json.loads(json.dumps(params.to_dict()))) == params


def test_a_rows_params_replace_what_they_name_and_nulls_nothing() -> None:
    task = SamplingParams(max_tokens=9, temperature=0.5)
    assert task.merged(None) is task
    assert task.merged('{"max_tokens":3,"temperature":null}') == SamplingParams(max_tokens=3, temperature=0.5)
    assert task.merged('{"temperature":"0x1.0p-2"}').temperature == 0.25


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ("{", "not JSON"),
        ("3", "JSON object"),
        ('{"tokens":3,"a":1}', r"unknown names \['a', 'tokens'\]"),
        ('{"temperature":"warm"}', "finite number"),
        ('{"temperature":"0xzz"}', "finite number"),
        ('{"temperature":"Infinity"}', "finite number"),
        ('{"max_tokens":"0x1.0p0"}', "whole number"),
    ],
)
def test_a_rows_wrong_params_say_what_is_wrong(params: str, why: str) -> None:
    with pytest.raises(InvalidParams, match=why):
        SamplingParams().merged(params)


def test_a_completion_without_an_error_code_is_a_success() -> None:
    assert Completion(row=1, input_hash="h", finish_reason=FinishReason.SKIPPED).ok
    assert not Completion(row=1, input_hash="h", error_code="PROMPT_TOO_LONG").ok
