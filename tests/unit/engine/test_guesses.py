"""Guesses of what comes next: what they are, when they are made, and that no answer changes by them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkinfer.engine.guesses import MOST, Guesses
from sparkinfer.types import SamplingParams
from tests.support.engine_runs import answer_of, drain, engine_of, expected_answer, request, runner_of


def test_the_tokens_after_the_same_tokens_are_guessed() -> None:
    guesses = Guesses([1, 2, 3, 4, 5, 9, 1, 2])
    assert guesses.next(2) == (3, 4)
    assert guesses.next(9) == (3, 4, 5, 9), "four at first"


def test_the_longest_match_decides_and_among_equals_the_latest() -> None:
    assert Guesses([7, 1, 2, 3, 50, 8, 2, 3, 60, 7, 1, 2, 3]).next(1) == (50,)
    assert Guesses([2, 3, 50, 8, 2, 3, 60, 9, 2, 3]).next(1) == (60,)


@pytest.mark.parametrize("ids", [[1, 2, 3, 4], [1], [5, 5], []])
def test_nothing_is_guessed_from_nothing(ids: list[int]) -> None:
    assert Guesses(ids).next(8) == ()


def test_it_sees_what_is_added() -> None:
    ids = [1, 2, 3]
    guesses = Guesses(ids)
    assert guesses.next(4) == ()
    ids += [1, 2]
    assert guesses.next(4) == (3, 1, 2)
    ids += [3, 9, 2, 3]
    assert guesses.next(1) == (9,)


def test_what_goes_well_is_done_more() -> None:
    ids = [*range(40), 0, 1]
    guesses = Guesses(ids)
    lengths = []
    for right in (True, True, True, False, False, False, False):
        made = guesses.next(99)
        lengths.append(len(made))
        guesses.learn(len(made), len(made) if right else 0)
    assert lengths == [4, 8, MOST, MOST, 8, 4, 2]


def repeating() -> list[int]:
    """Of two ids the fake runner's rule soon says what it said before."""
    return [0, 1] * 12


def test_right_guesses_save_steps_and_change_no_token() -> None:
    steps = {}
    for guess_tokens in (0, 8):
        engine = engine_of(guess_tokens=guess_tokens, vocabulary=2)
        asked = request(0, repeating(), max_tokens=60)
        engine.add(asked)
        assert answer_of(drain(engine)[0]) == expected_answer(asked, runner_of(engine))
        stats = engine.stats()
        steps[guess_tokens] = stats["steps"]
        assert stats["completion_tokens"] == 60
        assert (stats["guesses_right"] > 0) == (guess_tokens > 0)
    assert steps[0] == 60
    assert steps[8] < 45


def test_a_full_step_is_not_made_longer() -> None:
    engine = engine_of(guess_tokens=8, vocabulary=2, max_batch_size=16)
    for number in range(9):
        engine.add(request(number, repeating(), max_tokens=20))
    drain(engine)
    assert all(sum(count for _, count in plan) >= 9 for plan in runner_of(engine).plans[:20])
    assert engine.stats()["guessed_tokens"] == 0


@pytest.mark.parametrize(
    "asked",
    [
        {"sampling": SamplingParams(max_tokens=20, temperature=0.5)},
        {"sampling": SamplingParams(max_tokens=20, repetition_penalty=1.2)},
        {"sampling": SamplingParams(max_tokens=20, presence_penalty=0.5)},
        {"sampling": SamplingParams(max_tokens=20, logprobs=1)},
        {"sampling": SamplingParams(max_tokens=20), "choices": ((0, 1, 0), (0, 1, 1))},
    ],
    ids=["drawn", "repetition", "presence", "logprobs", "choices"],
)
def test_where_the_best_token_is_not_simply_taken_nothing_is_guessed(asked: dict) -> None:
    engine = engine_of(guess_tokens=8, vocabulary=2)
    engine.add(replace(request(0, repeating()), **asked))
    drain(engine)
    assert engine.stats()["guessed_tokens"] == 0


def test_a_step_that_fails_with_guesses_is_run_again_without() -> None:
    engine = engine_of(guess_tokens=8, vocabulary=2)
    asked = request(0, repeating(), max_tokens=60)
    engine.add(asked)
    outputs = engine.step()  # the prompt is through
    runner_of(engine)._memory_tokens = 1
    outputs += drain(engine)[0]
    assert answer_of(outputs) == expected_answer(asked, runner_of(engine))
    assert engine.stats()["failed_steps"] > 0, "each time that the budget has grown again"


def test_a_guess_that_poisons_a_step_costs_no_row() -> None:
    """The poisoned id is only guessed, never drawn."""
    engine = engine_of(guess_tokens=8, vocabulary=2)
    asked = request(0, [0, 1, 0, 77, 0, 1], max_tokens=6)
    engine.add(asked)
    outputs = engine.step()  # the prompt is through
    runner_of(engine)._poison_id = 77
    outputs += drain(engine)[0]
    assert answer_of(outputs) == expected_answer(asked, runner_of(engine))
    assert engine.stats()["failed_steps"] > 0
