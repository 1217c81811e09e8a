"""Two buckets at once, taken in order; a stop keeps what is whole and waits for nothing that is not begun."""

from __future__ import annotations

import _thread
import sys
import threading
import traceback
from typing import Any

import pytest

from sparkinfer.errors import DeadlineReached
from sparkinfer.job.commit import StagedBucket
from sparkinfer.job.counts import Counts
from sparkinfer.job.deadline import Deadline
from sparkinfer.job.pipeline import JobTag, answer_in_order
from sparkinfer.sink.base import StagedRows
from tests.support.engines import eventually


class SessionThatWent:
    """Its JVM ended with the signal that stops the job."""

    def addTag(self, name: str) -> None:
        """Still there."""

    def removeTag(self, name: str) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    def interruptTag(self, name: str) -> None:
        raise ConnectionRefusedError(111, "Connection refused")


class Tag(JobTag):
    """Of jobs that need no Spark."""

    def __init__(self) -> None:
        session: Any = SessionThatWent()
        super().__init__(session, "t")
        self.cancelled = threading.Event()

    def inherited(self, work: Any) -> Any:
        return work

    def cancel(self) -> None:
        self.cancelled.set()


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def staged(bucket: int) -> StagedBucket:
    return StagedBucket(bucket=bucket, rows=StagedRows(path="", columns=()), counts=Counts(rows=1))


def run(
    buckets: list[int],
    answer: Any,
    take: Any = lambda staged: None,
    *,
    tag: JobTag | None = None,
    deadline: Deadline | None = None,
) -> None:
    answer_in_order(buckets, answer, take, tag=tag or Tag(), deadline=deadline or Deadline(None))


def test_buckets_come_in_order_though_a_later_one_is_ready_first() -> None:
    second_done = threading.Event()
    taken: list[int] = []

    def answer(bucket: int) -> StagedBucket:
        if bucket == 0:
            assert second_done.wait(10)
        if bucket == 1:
            second_done.set()
        return staged(bucket)

    run([0, 1, 2], answer, lambda staged: taken.append(staged.bucket))
    assert taken == [0, 1, 2]


def test_no_more_than_two_are_open_before_one_is_taken() -> None:
    begun: list[int] = []
    seen: list[set[int]] = []

    def answer(bucket: int) -> StagedBucket:
        begun.append(bucket)
        return staged(bucket)

    run([0, 1, 2, 3], answer, lambda staged: seen.append(set(begun)))
    assert seen[0] <= {0, 1}
    assert seen[-1] == {0, 1, 2, 3}


def test_an_error_cancels_the_others_and_leaves_the_rest_untouched() -> None:
    tag, begun, taken = Tag(), [], []

    def answer(bucket: int) -> StagedBucket:
        begun.append(bucket)
        if bucket == 0:
            raise ValueError("bucket 0")
        assert tag.cancelled.wait(10)
        return staged(bucket)

    with pytest.raises(ValueError, match="bucket 0"):
        run([0, 1, 2, 3], answer, taken.append, tag=tag)
    assert set(begun) <= {0, 1}
    assert taken == []


def main_thread_waits() -> bool:
    """Whether the thread that takes the buckets waits for one."""
    names = (
        summary.name for summary in traceback.extract_stack(sys._current_frames()[threading.main_thread().ident or 0])
    )
    return Deadline.wait_for.__name__ in names


@pytest.mark.parametrize("stop", ["deadline", "signal"])
def test_a_stop_takes_what_is_whole_and_leaves_the_rest(stop: str) -> None:
    """The second bucket was finished before the first one; both stops go the same way."""
    tag, clock, taken = Tag(), Clock(), []
    second_done = threading.Event()

    def answer(bucket: int) -> StagedBucket:
        if bucket == 1:
            second_done.set()
            return staged(bucket)
        assert second_done.wait(10)
        if stop == "deadline":
            clock.now = 60.0
        else:
            eventually(main_thread_waits)
            _thread.interrupt_main()
        assert tag.cancelled.wait(10)
        raise ValueError("the Spark job was cancelled")

    with pytest.raises(DeadlineReached if stop == "deadline" else KeyboardInterrupt):
        run([0, 1, 2], answer, lambda s: taken.append(s.bucket), tag=tag, deadline=Deadline("1m", clock=clock))
    assert taken == [1]


def test_work_that_begins_in_the_moment_of_the_stop_is_cancelled_too() -> None:
    """A bucket between two Spark jobs has none to cancel at first."""
    tag, clock = Tag(), Clock()

    def answer(bucket: int) -> StagedBucket:
        clock.now = 60.0
        assert tag.cancelled.wait(10)
        tag.cancelled.clear()  # the next job begins after that
        assert tag.cancelled.wait(10)
        raise ValueError("cancelled")

    with pytest.raises(DeadlineReached, match="deadline of 1m"):
        run([0], answer, tag=tag, deadline=Deadline("1m", clock=clock))


def test_a_commit_that_fails_while_the_job_stops_does_not_hide_the_stop() -> None:
    tag, clock = Tag(), Clock()

    def answer(bucket: int) -> StagedBucket:
        if bucket == 0:
            clock.now = 60.0
            assert tag.cancelled.wait(10)
        return staged(bucket)

    def take(staged: StagedBucket) -> None:
        raise ConnectionRefusedError(111, "the JVM went")

    with pytest.raises(DeadlineReached):
        run([0, 1], answer, take, tag=tag, deadline=Deadline(60, clock=clock))


class TagOfThatSession(Tag):
    """Ends its jobs as every tag does."""

    cancel = JobTag.cancel


def test_a_session_that_went_does_not_hide_why_the_job_ends() -> None:
    tag = TagOfThatSession()

    def answer(bucket: int) -> StagedBucket:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), tag.on_this_thread():
        run([0, 1], answer, tag=tag)
