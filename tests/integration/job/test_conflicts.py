"""A commit that another writer wins is repeated from staging: the answers are not asked again, no row is lost or doubled."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from sparkinfer.errors import CommitFailed
from sparkinfer.hashing import input_hash
from sparkinfer.job.staging import JOB_FILE
from sparkinfer.sink.base import Commit, StagedRows
from sparkinfer.sink.delta_rs import DeltaRsSink
from sparkinfer.sink.delta_spark import DeltaSparkSink
from sparkinfer.sink.faults import mapped


def input_hash_of(text: str) -> str:
    return input_hash(("text",), (text.encode(),), "s")


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


def texts_of_bucket(bucket: int, *, whose: str, number: int) -> list[str]:
    """Texts whose inputs lie in one of two buckets."""
    texts = (f"{whose} text {i}" for i in itertools.count())
    fitting = (text for text in texts if int(input_hash_of(text)[:15], 16) % 2 == bucket)
    return list(itertools.islice(fitting, number))


@pytest.mark.parametrize("base", [DeltaSparkSink, DeltaRsSink])
def test_a_new_key_that_two_jobs_give_different_inputs_stands_once(job: Any, base: type[Any]) -> None:
    """The inputs lie in different buckets, so that no compare-and-set sees the two meet; appends never conflict."""
    ids = range(3)
    ours = texts_of_bucket(0, whose="our", number=len(ids))
    theirs = texts_of_bucket(1, whose="their", number=len(ids))
    sink = meddling(base)(job.spark, job.into, lambda: job.run(job.frame(list(zip(ids, theirs, strict=True)))))
    source = job.frame(list(zip(ids, ours, strict=True)))
    assert job.run(source, into=sink).rows == len(ids)
    rows = job.rows()
    assert [row.id for row in rows] == list(ids)
    assert {row.bucket for row in rows} == {1}
    assert {row.input_hash for row in rows} == set(map(input_hash_of, theirs)), "answered later than ours"
    assert job.run(source).rows == len(ids)
    assert [row.input_hash for row in job.rows()] == list(map(input_hash_of, ours))


def test_a_key_left_twice_by_a_job_that_was_killed_before_it_settled_is_settled_by_the_next(job: Any) -> None:
    ids = range(3)
    ours = texts_of_bucket(0, whose="our", number=len(ids))
    theirs = texts_of_bucket(1, whose="their", number=len(ids))
    source, other = (job.frame(list(zip(ids, texts, strict=True))) for texts in (ours, theirs))

    class Killed(MeddlingSink):
        def remove(self, *arguments: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.run(source, into=Killed(job.spark, job.into, lambda: job.run(other)))
    assert [row.id for row in job.rows()] == [0, 0, 1, 1, 2, 2], "this is what the next job finds"
    asked = len(job.requests())

    result = job.run(other)
    assert (result.rows, result.already_done) == (0, len(ids))
    rows = job.rows()
    assert [row.id for row in rows] == list(ids)
    assert {row.input_hash for row in rows} == set(map(input_hash_of, theirs)), "answered later than ours"
    assert len(job.requests()) == asked


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
