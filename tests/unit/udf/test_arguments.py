"""Wrong use of ``llm_udf`` is found at the call, before Spark or a model is touched."""

from __future__ import annotations

import inspect

import pytest

from sparkinfer import SamplingParams, llm_udf
from sparkinfer.errors import InvalidConfig, InvalidModelUri, InvalidTemplate, MissingColumn


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": "16"},
        {"max_tokens": True},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": -1},
        {"stop": [""]},
        {"stop": [1]},
        {"seed": 1.5},
        {"logprobs": 21},
        {"prompt": "\ud800 {text}"},
        {"system": "half an emoji: \ud83d"},
        {"choices": ["good", "\ud800"]},
        {"stop": ["\udc00"]},
        {"choices": []},
        {"choices": "good"},
        {"choices": ["good", "good"]},
        {"choices": ["good", ""]},
        {"choices": ["good", 1]},
        {"on_overflow": "cut"},
        {"dtype": "float8"},
        {"engine_mode": "remote"},
        {"fail_on_error": "no"},
        {"skip_blank": 1},
        {"priority": 1.0},
        {"prompt": ""},
        {"prompt": 3},
        {"system": " "},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_and_named(wrong):
    with pytest.raises(InvalidConfig, match=next(iter(wrong))):
        llm_udf(model="fake", **wrong)


@pytest.mark.parametrize("prompt", ["no argument", "{", "{}", "{a.b}", "{a!r}", "{{text}}", "{text} {params}"])
def test_a_wrong_template_is_refused(prompt):
    with pytest.raises(InvalidTemplate):
        llm_udf(model="fake", prompt=prompt)


def test_a_model_object_is_refused_because_it_must_not_travel():
    with pytest.raises(InvalidModelUri, match="executors load it themselves"):
        llm_udf(model=object())


def test_names_of_later_versions_are_unknown_and_not_ignored():
    with pytest.raises(TypeError, match="response_format"):
        llm_udf(model="fake", response_format="STRUCT<a: INT>")


def test_arguments_are_the_templates_in_order_of_first_appearance():
    assert llm_udf(model="fake", prompt="{b} {{x}} {a} {b}").names == ("b", "a")
    assert llm_udf(model="fake").names == ("text",)


@pytest.mark.parametrize(
    ("columns", "named", "error", "text"),
    [
        (["x"], {}, MissingColumn, r"\['b'\]"),
        (["x", "y", "z"], {}, InvalidConfig, "3 columns"),
        (["x"], {"c": "y"}, InvalidConfig, r"no \['c'\]"),
        (["x"], {"a": "y", "b": "z"}, InvalidConfig, "by position and by name"),
        ([], {"a": "x"}, MissingColumn, r"\['b'\]"),
    ],
)
def test_columns_must_fit_the_arguments(columns, named, error, text):
    with pytest.raises(error, match=text):
        llm_udf(model="fake", prompt="{a} {b}")(*columns, **named)


def test_the_recipe_is_resolved_once_and_its_model_stays_pinned():
    label = llm_udf(model="fake:?answer=yes", choices=["good", "bad"], system="Label.", max_tokens=7, strict=True)
    resolved = label.resolve()
    assert label.resolve() is resolved
    assert resolved.engine.model.kind == "fake"
    assert resolved.engine.settings.strict
    assert resolved.task.choices == ("good", "bad")
    assert len(resolved.task.config_hash) == 64
    assert (
        resolved.task.config_hash
        != llm_udf(model="fake:?answer=yes", choices=["good", "bad"], system="Label.").resolve().task.config_hash
    )


def test_a_udf_without_a_model_says_where_to_name_one(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # no conf/sparkinfer.yaml here
    with pytest.raises(InvalidConfig, match=r"spark\.sparkinfer\.model"):
        llm_udf().resolve()


def test_a_huge_recipe_is_refused_instead_of_travelling_with_each_task():
    with pytest.raises(InvalidConfig, match="pass long text as a column"):
        llm_udf(model="fake", system="x" * 5_000_000).resolve()


def test_the_signature_is_the_designs():
    names = list(inspect.signature(llm_udf).parameters)
    sampling = list(SamplingParams.__dataclass_fields__)
    assert names == [
        "columns", "model", "prompt", "system", "choices", *sampling, "on_overflow", "skip_blank", "dtype", "priority", "strict",
        "fallback", "trust_remote_code", "engine_mode", "fail_on_error",
    ]  # fmt: skip


@pytest.mark.parametrize("choices", [[" a", "b"], ["a\n", "b"], ["a\0"]])
def test_choices_that_a_model_cannot_say_as_they_are_written_are_refused(choices):
    with pytest.raises(InvalidConfig, match="white space"):
        llm_udf(model="fake", choices=choices)


def test_numbers_that_mean_nothing_are_refused():
    with pytest.raises(InvalidConfig, match="priority"):
        llm_udf(model="fake", priority=2**70)
    with pytest.raises(InvalidConfig, match="max_tokens"):
        llm_udf(model="fake", max_tokens=10**12)


def test_columns_in_another_order_than_the_braces_are_not_taken_for_each_other():
    both = llm_udf(model="fake", prompt="{product}: {message}")
    with pytest.raises(InvalidConfig, match="follow the order of the braces"):
        both("message", "product")
    ordered, _ = both._ordered([], {"product": "message", "message": "product"})  # said by name it is meant
    assert ordered == ["message", "product"]
    assert both._ordered(["title", "body"], {})[0] == ["title", "body"]
