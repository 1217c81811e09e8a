from __future__ import annotations

from sparkinfer.engine.budget import GROW_AFTER, TokenBudget


def test_a_failed_step_halves_what_it_ran_not_what_it_might_have_run() -> None:
    budget = TokenBudget(2048)
    budget.shrink(100)
    assert budget.tokens == 50


def test_it_never_falls_below_one_token() -> None:
    budget = TokenBudget(8)
    budget.shrink(1)
    assert budget.tokens == 1


def test_it_doubles_after_enough_good_steps_up_to_its_limit() -> None:
    budget = TokenBudget(8)
    budget.shrink(6)
    for expected in (6, 8, 8):
        for _ in range(GROW_AFTER):
            budget.succeeded()
        assert budget.tokens == expected


def test_a_failure_starts_the_count_of_good_steps_anew() -> None:
    budget = TokenBudget(8)
    budget.shrink(8)
    for _ in range(GROW_AFTER - 1):
        budget.succeeded()
    budget.shrink(4)
    budget.succeeded()
    assert budget.tokens == 2
