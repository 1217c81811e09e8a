"""A commit that another writer wins is repeated from staging: the answers are not asked again, no row is lost or doubled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from sparkinfer.errors import CommitFailed
from sparkinfer.job.staging import JOB_FILE
from sparkinfer.sink.base import Commit, StagedRows
from sparkinfer.sink.delta_rs import DeltaRsSink
from sparkinfer.sink.delta_spark import DeltaSparkSink
from sparkinfer.sink.faults import mapped


def answer_to(prompt: str) -> str:
    """As the fake engine has it."""
    return "answer-" + hashlib.sha256(prompt.encode()).hexdigest()[:8]


def meddling(base: type[Any]) -> type[Any]:
    """A sink where something happens before the first commit."""

    class MeddlingSink(base):
        def __init__(self, spark: Any, table: str, before: Callable[[], object]) -> None:
            super().__init__(spark, table)
            self._before: Callable[[], object] | None = before

        def append(self, staged: StagedRows, commit: Commit) -> None:
            before, self._before = self._before, None
            if before is not None:
                with mapped(table=self.table, doing="appending"):
                    before()
            super().append(staged, commit)

    return MeddlingSink


MeddlingSink = meddling(DeltaSparkSink)


def test_rows_that_another_job_wrote_meanwhile_are_not_doubled(job: Any) -> None:
    """Delta drops the late append without a word; the job notices and finds nothing left to write."""
    source = job.frame([(i, f"text {i}") for i in range(4)])
    grown = job.frame([(i, f"text {i}") for i in range(6)])
    sink = MeddlingSink(job.spark, job.into, lambda: job.run(source, buckets=1))
    result = job.run(grown, into=sink, buckets=1)
    assert [row.id for row in job.rows()] == list(range(6))
    assert (result.rows, result.already_done) == (2, 4)


@pytest.mark.parametrize("base", [DeltaSparkSink, DeltaRsSink])
def test_a_new_key_that_two_jobs_give_different_inputs_stands_once(job: Any, base: type[Any]) -> None:
    """The inputs lie in different buckets, so that no compare-and-set sees the two meet; appends never conflict."""
    ids = range(6)
    theirs = job.frame([(i, f"their text {i}") for i in ids])
    ours = job.frame([(i, f"our text {i}") for i in ids])
    sink = meddling(base)(job.spark, job.into, lambda: job.run(theirs))
    assert job.run(ours, into=sink).rows == len(ids)
    rows = job.rows()
    assert [row.id for row in rows] == list(ids)
    assert len({row.run_id for row in rows}) == 2, (
        "of the first bucket's keys theirs are newer; the second one's were compared again"
    )
    assert job.run(ours).rows < len(ids)
    assert {row.answer for row in job.rows()} == {answer_to(f"Say our text {i}") for i in ids}


def test_a_commit_that_fails_for_good_keeps_the_answers_for_the_next_run(job: Any) -> None:
    source = job.frame([(i, f"text {i}") for i in range(8)])

    def broken() -> None:
        raise RuntimeError("the store is down")

    with pytest.raises(CommitFailed, match="the store is down") as failed:
        job.run(source, into=MeddlingSink(job.spark, job.into, broken), buckets=1)
    kept = list((job.folder / "labels" / "_sparkinfer").glob(f"*/{JOB_FILE}"))
    assert len(kept) == 1
    assert str(kept[0].parent) in failed.value.message
    assert len(job.requests()) == 8

    result = job.run(source)
    assert (result.rows, len(job.rows())) == (8, 8)
    assert len(job.requests()) == 8, "what was staged is used, not asked again"
    assert not list((job.folder / "labels" / "_sparkinfer").glob("*"))
