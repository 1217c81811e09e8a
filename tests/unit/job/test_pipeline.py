"""Two buckets at once, results in order, an end without waiting for what is not begun."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import pytest

from sparkinfer.job.commit import StagedBucket
from sparkinfer.job.counts import Counts
from sparkinfer.job.pipeline import JobTag, answered_in_order
from sparkinfer.sink.base import StagedRows


def staged(bucket: int) -> StagedBucket:
    return StagedBucket(bucket=bucket, rows=StagedRows(path="", columns=()), counts=Counts(rows=1))


def test_buckets_come_in_order_though_a_later_one_is_ready_first() -> None:
    second_done = threading.Event()

    def answer(bucket: int) -> StagedBucket:
        if bucket == 0:
            assert second_done.wait(10)
        if bucket == 1:
            second_done.set()
        return staged(bucket)

    assert [s.bucket for s in answered_in_order([0, 1, 2], answer, cancel=lambda: None)] == [0, 1, 2]


def test_no_more_than_two_are_open_before_one_is_taken() -> None:
    begun: list[int] = []

    def answer(bucket: int) -> StagedBucket:
        begun.append(bucket)
        return staged(bucket)

    with closing(answered_in_order([0, 1, 2, 3], answer, cancel=lambda: None)) as answered:
        next(answered)
        assert set(begun) <= {0, 1}


def test_an_error_cancels_the_others_and_leaves_the_rest_untouched() -> None:
    cancelled = threading.Event()
    begun: list[int] = []

    def answer(bucket: int) -> StagedBucket:
        begun.append(bucket)
        if bucket == 0:
            raise ValueError("bucket 0")
        assert cancelled.wait(10)
        raise ValueError("cancelled")

    with pytest.raises(ValueError, match="bucket 0"):
        list(answered_in_order([0, 1, 2, 3], answer, cancel=cancelled.set))
    assert set(begun) <= {0, 1}


def test_closing_early_cancels() -> None:
    cancelled = threading.Event()
    answered = answered_in_order([0, 1, 2], staged, cancel=cancelled.set)
    next(answered)
    answered.close()
    assert cancelled.is_set()


class SessionThatWent:
    """Its JVM ended with the signal that stops the job."""

    def addTag(self, name: str) -> None:
        """Still there."""

    def removeTag(self, name: str) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    def interruptTag(self, name: str) -> None:
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_session_that_went_does_not_hide_why_the_job_ends() -> None:
    session: Any = SessionThatWent()
    tag = JobTag(session, "t")

    def answer(bucket: int) -> StagedBucket:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), tag.on_this_thread():
        list(answered_in_order([0, 1], answer, cancel=tag.cancel))
