"""An answers table that jobs share: what one of them has paid for costs the others nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from deltalake import DeltaTable

from sparkinfer.errors import InvalidConfig, TableSchemaMismatch
from tests.integration.job.test_conflicts import MeddlingSink


@pytest.fixture
def answers(job: Any) -> str:
    return str(job.folder / "answers")


def inputs(answers: str) -> list[str]:
    return sorted(DeltaTable(answers).to_pyarrow_table()["input_hash"].to_pylist())


def test_a_text_that_another_job_answered_costs_nothing(job: Any, answers: str) -> None:
    job.options = "&fail=poison"
    first = job.run(job.frame([(1, "a"), (2, "b"), (3, "a"), (4, None), (5, "poison")]), buckets=1, cache=answers)
    assert (first.requests, first.reused, first.failed, first.skipped) == (3, 0, 1, 1)
    assert len(inputs(answers)) == 2, "neither the failed row nor the skipped one"

    other = str(job.folder / "other")
    second = job.run(job.frame([(7, "b"), (8, "c"), (9, "b")]), into=other, buckets=2, cache=answers)
    assert (second.rows, second.requests, second.reused) == (3, 1, 2)
    assert second.paid_completion_tokens < second.completion_tokens
    rows, old = job.rows(other), job.rows()
    assert [row.answer for row in rows if row.id in (7, 9)] == [old[1].answer] * 2
    assert [row.attempts for row in rows if row.id in (7, 9)] == [0, 0]
    assert rows[0].inferred_at == old[1].inferred_at
    assert len(inputs(answers)) == len(set(inputs(answers))) == 3

    version = DeltaTable(answers).version()
    third = job.run(job.frame([(1, "c"), (2, "b")]), into=str(job.folder / "third"), buckets=1, cache=answers)
    assert (third.requests, third.reused) == (0, 2)
    assert job.run(job.frame([(7, "b")]), into=other, cache=answers).already_done == 1
    assert DeltaTable(answers).version() == version, "nothing was paid, nothing is added"

    another_prompt = job.udf(system="You are another configuration.")
    fourth = job.run(
        job.frame([(1, "c")]), into=str(job.folder / "fourth"), udf=another_prompt, buckets=1, cache=answers
    )
    assert (fourth.requests, fourth.reused) == (1, 0)
    assert len(inputs(answers)) == 4


def test_two_jobs_at_once_add_an_answer_once(job: Any, answers: str) -> None:
    texts = job.frame([(i, f"text {i}") for i in range(4)])
    more = job.frame([(i, f"text {i}") for i in range(5)])
    other = str(job.folder / "other")
    sink = MeddlingSink(job.spark, job.into, lambda: job.run(texts, into=other, buckets=1, cache=answers))
    result = job.run(more, into=sink, buckets=1, cache=answers)
    assert result.requests == 5
    assert len(inputs(answers)) == len(set(inputs(answers))) == 5


def test_an_answers_table_that_cannot_be_made_is_a_warning(job: Any, answers: str, caplog: Any) -> None:
    (job.folder / "answers").write_text("a file where the table would be")
    with caplog.at_level(logging.WARNING, logger="sparkinfer"):
        assert job.run(job.frame([(1, "a")]), buckets=1, cache=f"{answers}/table").rows == 1
    assert "goes on without it" in caplog.text


def test_answers_that_cannot_be_added_are_a_warning(job: Any, answers: str, caplog: Any) -> None:
    job.run(job.frame([(1, "a")]), into=str(job.folder / "other"), buckets=1, cache=answers)
    log = job.folder / "answers" / "_delta_log"

    def broken() -> None:
        log.rename(job.folder / "gone")
        log.write_text("a file where the log was")

    sink = MeddlingSink(job.spark, job.into, broken)
    with caplog.at_level(logging.WARNING, logger="sparkinfer"):
        assert job.run(job.frame([(1, "a"), (2, "b")]), into=sink, buckets=1, cache=answers).rows == 2
    assert "were not added to the answers table" in caplog.text
    assert [row.id for row in job.rows()] == [1, 2]


def test_a_table_that_is_no_answers_table_is_refused_before_anything_runs(job: Any) -> None:
    job.run(job.frame([(1, "a")]), buckets=1)
    with pytest.raises(TableSchemaMismatch, match="exists with other columns"):
        job.run(job.frame([(2, "b")]), into=str(job.folder / "other"), cache=job.into)
    with pytest.raises(InvalidConfig, match="a table of its own"):
        job.run(job.frame([(2, "b")]), cache=job.into)
    assert len(job.requests()) == 1
