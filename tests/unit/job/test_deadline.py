"""A job's time: read, watched, and over."""

from __future__ import annotations

import threading

import pytest

from sparkinfer.errors import DeadlineReached, InvalidConfig
from sparkinfer.job.deadline import Deadline
from tests.unit.job.test_pipeline import Clock


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2h", 7200),
        ("90m", 5400),
        ("45s", 45),
        ("1h30m", 5400),
        ("1d", 86400),
        ("0.5h", 1800),
        (" 2 H ", 7200),
        (12.5, 12.5),
    ],
)
def test_lengths_of_time_are_read_as_people_write_them(value: str | float, seconds: float) -> None:
    clock = Clock()
    deadline = Deadline(value, clock=clock)
    clock.now = seconds - 0.001
    assert not deadline.has_passed
    clock.now = seconds
    assert deadline.has_passed


@pytest.mark.parametrize("value", ["", "2", "soon", "2h soon", "h", "2x", "-2h", True, float("nan"), float("inf")])
def test_what_is_no_length_of_time_is_refused(value: str | float) -> None:
    with pytest.raises(InvalidConfig, match="deadline must be a length of time such as 2h"):
        Deadline(value)


@pytest.mark.parametrize("value", [0, -1, -0.5, "0s", "0h0m"])
def test_a_deadline_that_has_passed_is_refused(value: str | float) -> None:
    with pytest.raises(InvalidConfig, match="deadline must lie ahead"):
        Deadline(value)


def test_without_a_deadline_nothing_is_ever_over() -> None:
    deadline = Deadline(None)
    deadline.check()
    with deadline.over(lambda: pytest.fail("nothing to cancel")):
        pass


def test_work_is_cancelled_when_the_time_is_over_and_its_error_is_the_deadline() -> None:
    clock, cancelled = Clock(), threading.Event()
    deadline = Deadline("10s", clock=clock)
    with pytest.raises(DeadlineReached, match="10s"), deadline.over(cancelled.set):
        clock.now = 10.0
        assert cancelled.wait(10)
        raise ValueError("Job 3 cancelled")


def test_an_error_before_the_deadline_is_an_error() -> None:
    with pytest.raises(ValueError, match="broken"), Deadline("10s", clock=Clock()).over(lambda: None):
        raise ValueError("broken")
