"""Looks at a running job: live counters and committed buckets together."""

from __future__ import annotations

import logging
import threading

import pytest

from sparkinfer.job.counts import Counts
from sparkinfer.job.progress import Progress, ProgressReporter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_live_counters_of_all_engines_are_added_and_never_exceed_the_rows() -> None:
    clock = Clock()
    reporter = ProgressReporter(None, clock=clock)
    reporter.expect(rows=10, buckets=2)
    reporter.watch(
        lambda: [{"rows_done": 2, "prompt_tokens": 20, "running": 1}, {"rows_done": 1, "running": 2}], lambda: None
    )
    reporter.look()
    clock.now = 2.0
    look = reporter.look()
    assert (look.rows_done, look.prompt_tokens, look.running, look.buckets_total) == (3, 20, 3, 2)
    assert (look.rows_per_second, look.eta_seconds) == (1.5, pytest.approx(7 / 1.5))
    reporter.watch(lambda: [{"rows_done": 99}], lambda: None)
    assert reporter.look().rows_done == 10


def test_committed_rows_count_where_no_engine_tells() -> None:
    reporter = ProgressReporter(None)
    reporter.expect(rows=5, buckets=1)
    reporter.committed(Counts(rows=5, failed=2, paid_prompt_tokens=7))
    look = reporter.look()
    assert (look.rows_done, look.rows_failed, look.buckets_done, look.prompt_tokens) == (5, 2, 1, 7)


def test_rows_done_never_falls_when_the_live_counters_go_away() -> None:
    reporter = ProgressReporter(None)
    reporter.expect(rows=5, buckets=1)
    reporter.committed(Counts(rows=4))
    reporter.watch(lambda: [{"rows_done": 1}], lambda: None)
    assert reporter.look().rows_done == 4


def test_the_last_look_comes_with_close() -> None:
    seen: list[Progress] = []
    reporter = ProgressReporter(seen.append, interval_s=60)
    reporter.start()
    reporter.phase("done")
    reporter.close()
    assert [look.phase for look in seen] == ["done"]


def test_a_display_that_raises_is_not_called_again(caplog: pytest.LogCaptureFixture) -> None:
    calls = threading.Semaphore(0)

    def broken(look: Progress) -> None:
        calls.release()
        raise ValueError("no terminal")

    reporter = ProgressReporter(broken, interval_s=0.01)
    with caplog.at_level(logging.WARNING):
        reporter.start()
        assert calls.acquire(timeout=10)
        reporter.close()
    assert not calls.acquire(blocking=False)
    assert "no terminal" in caplog.text


def test_counts_add_up() -> None:
    total = Counts(rows=2, failures={"A": 1}) + Counts(rows=3, failures={"A": 1, "B": 2}, example=("A", "1", "h"))
    assert (total.rows, total.failures, total.example) == (5, {"A": 2, "B": 2}, ("A", "1", "h"))


def test_counters_that_cannot_be_read_just_now_do_not_end_the_display() -> None:
    seen: list[Progress] = []
    reporter = ProgressReporter(seen.append, interval_s=60)
    reporter.expect(rows=5, buckets=1)
    reporter.committed(Counts(rows=4))

    def broken() -> list[dict[str, float]]:
        raise OSError("the store does not answer")

    reporter.watch(broken, lambda: None)
    reporter.close()
    assert [look.rows_done for look in seen] == [4]
