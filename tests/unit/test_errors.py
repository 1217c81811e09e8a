"""The tree of exceptions: it pickles, its codes are stable words, and the drawing is the tree."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from sparkinfer import errors
from sparkinfer.errors import SparkInferError, all_errors, by_code


@pytest.mark.parametrize("cls", all_errors())
def test_every_error_pickles_with_its_message(cls: type[SparkInferError]) -> None:
    copy = pickle.loads(pickle.dumps(cls("what, where, how to mend it")))
    assert type(copy) is cls
    assert copy.message == "what, where, how to mend it"
    assert str(copy) == f"[{cls.code}] what, where, how to mend it"


@pytest.mark.parametrize("cls", all_errors())
def test_every_error_has_a_code_in_upper_snake_and_a_sentence(cls: type[SparkInferError]) -> None:
    assert re.fullmatch(r"[A-Z]+(_[A-Z0-9]+)*", cls.code)
    assert (cls.__doc__ or "").strip()


def test_a_code_belongs_to_one_class_or_to_a_class_and_its_parent() -> None:
    for cls in all_errors():
        same = [other for other in all_errors() if other.code == cls.code]
        assert all(issubclass(same[-1], other) for other in same), same


def test_every_class_is_drawn_in_the_tree() -> None:
    drawn = inspect.getdoc(errors) or ""
    assert [cls.__name__ for cls in all_errors() if cls.__name__ not in drawn] == []


def test_an_error_is_found_by_its_code() -> None:
    assert by_code("PROMPT_TOO_LONG") is errors.PromptTooLong
    assert by_code("INVALID_CONFIG") is errors.InvalidConfig
    assert by_code("NO_SUCH_CODE") is SparkInferError
