from __future__ import annotations

from sparkinfer.cli.row_by_row import _next_ids
from sparkinfer.text.task import Prompt
from sparkinfer.types import SamplingParams

END = 2


def prompt(*choices: tuple[int, ...]) -> Prompt:
    return Prompt(ids=[7, 8], sampling=SamplingParams(), choices=choices, stop_ids=frozenset({END}), warnings=())


def test_only_what_begins_a_choice_may_come_first() -> None:
    allowed = _next_ids(prompt((10, 11), (12,)))
    assert allowed(0, [7, 8]) == [10, 12]


def test_a_begun_choice_is_finished_and_then_ends() -> None:
    allowed = _next_ids(prompt((10, 11), (12,)))
    assert allowed(0, [7, 8, 10]) == [11]
    assert allowed(0, [7, 8, 10, 11]) == [END]


def test_a_choice_that_begins_another_may_end_or_go_on() -> None:
    allowed = _next_ids(prompt((10,), (10, 11)))
    assert allowed(0, [7, 8, 10]) == [END, 11]
