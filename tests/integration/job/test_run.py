"""run() end to end on the counting engine: every row once, every distinct input asked once, nothing asked again."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sparkinfer import status
from sparkinfer.errors import (
    DuplicateKey,
    FailedRows,
    MissingColumn,
    NullKey,
    PermissionDenied,
    ReservedColumn,
    SourceNotFound,
    TableSchemaMismatch,
    WrongColumnType,
)
from sparkinfer.sink.delta_rs import DeltaRsSink
from sparkinfer.sink.delta_spark import DeltaSparkSink
from sparkinfer.tracking.base import RecordingTracker, RunStatus
from tests.support.reads import Reads

TEXTS = [(i, None if i % 10 == 9 else f"text {i % 6}") for i in range(20)]  # 18 rows over 6 texts, 2 nulls
DISTINCT = 6
RETRIES = 3  # a text that fails for a reason that may pass is asked so many times more


@pytest.mark.parametrize("writer", ["delta-spark", "delta-rs"])
def test_every_row_is_written_once_and_a_repeat_asks_nothing(job: Any, writer: str, no_leftovers: Any) -> None:
    job.options = "&fail=text 3"
    into = job.into if writer == "delta-spark" else DeltaRsSink(job.spark, job.into)
    source = job.frame(TEXTS)
    tracker = RecordingTracker()
    seen: list[Any] = []

    first = job.run(source, into=into, tracker=tracker, on_progress=seen.append)

    rows = job.rows()
    assert [row.id for row in rows] == list(range(20))
    assert first.requests == DISTINCT
    assert len(job.requests()) == DISTINCT + RETRIES
    assert job.loads() == 1
    assert (first.rows, first.skipped, first.already_done, first.writer) == (20, 2, 0, writer)
    assert first.failed == sum(text == "text 3" for _, text in TEXTS) == first.failures["INFERENCE_FAILED"]
    assert {row.answer for row in rows if row.finish_reason == "stop"} == {
        row.answer for row in rows if row.error_code is None and row.answer is not None
    }
    assert sum(row.attempts for row in rows) == DISTINCT + RETRIES, "twins count their tokens but no attempt"
    assert {row.bucket for row in rows} <= {0, 1}
    assert {row.run_id for row in rows} == {first.run_id}
    assert no_leftovers()
    assert tracker.outcomes[0].status is RunStatus.FINISHED
    assert tracker.outcomes[0].metrics["rows"] == 20
    assert tracker.outcomes[0].samples
    assert seen[-1].phase == "done"
    assert seen[-1].rows_done == seen[-1].rows_total == 20

    again = job.run(source, into=into)
    assert (again.rows, again.requests, again.already_done, again.failed_before) == (
        0,
        0,
        20 - first.failed,
        first.failed,
    )
    assert again.table_version == first.table_version
    assert len(job.requests()) == DISTINCT + RETRIES

    found = status(job.into)
    assert (found.rows, found.failed, found.skipped, found.output) == (20, first.failed, 2, "answer")
    assert found.runs[0].run_id == first.run_id
    assert found.runs[0].rows == 20

    retried = job.run(source, into=into, retry_failed=True)
    assert (retried.rows, retried.failed, retried.requests) == (first.failed, first.failed, 1)
    assert [row.id for row in job.rows()] == list(range(20)), "failed rows are replaced, not added"
    assert len(job.requests()) == DISTINCT + RETRIES + 1 + RETRIES

    with pytest.raises(FailedRows, match=r"failed before") as refused:
        job.run(source, into=into, fail_on_error=True)
    assert "retry_failed=True" in refused.value.message


def test_new_rows_with_old_texts_are_written_without_a_request(job: Any) -> None:
    job.run(job.frame([(1, "a"), (2, "b")]))
    grown = job.run(job.frame([(1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "c")]))
    assert (grown.rows, grown.reused, grown.already_done, grown.requests) == (3, 2, 2, 1)
    assert sorted(prompt.splitlines()[0] for prompt in job.requests()) == [f"user: Say {text}" for text in "abc"]
    rows = {row.id: row for row in job.rows()}
    assert rows[3].answer == rows[1].answer
    assert (rows[3].attempts, rows[3].prompt_tokens) == (0, rows[1].prompt_tokens)


def test_a_changed_input_or_configuration_replaces_the_row_in_mode_latest(job: Any) -> None:
    first = job.run(job.frame([(1, "a"), (2, "b")]))
    changed = job.run(job.frame([(1, "a"), (2, "b changed")]))
    assert (changed.rows, changed.already_done) == (1, 1)
    assert [row.id for row in job.rows()] == [1, 2]
    other = job.run(job.frame([(1, "a"), (2, "b changed")]), udf=job.udf(max_tokens=7))
    assert other.rows == 2
    rows = job.rows()
    assert [row.id for row in rows] == [1, 2]
    assert {row.config_hash for row in rows} == {other.config_hash} != {first.config_hash}


def test_mode_append_keeps_one_row_per_key_input_and_configuration(job: Any) -> None:
    source = job.frame([(1, "a"), (2, "b")])
    job.run(source, mode="append")
    job.run(source, mode="append", udf=job.udf(max_tokens=7))
    repeated = job.run(source, mode="append", udf=job.udf(max_tokens=7))
    assert (repeated.rows, repeated.already_done) == (0, 2)
    assert [row.id for row in job.rows()] == [1, 1, 2, 2]


def test_rows_without_a_key_are_known_by_all_columns_and_their_number(job: Any) -> None:
    source = job.frame([(1, "a"), (1, "a"), (2, "b")])
    first = job.run(source, key=None, keep=["id"])
    assert (first.rows, len({row.row_key for row in job.rows()})) == (3, 3)
    assert job.run(source, key=None, keep=["id"]).already_done == 3


def test_a_delta_source_is_pinned_to_its_version(job: Any) -> None:
    source = str(job.folder / "source")
    job.frame([(1, "a")]).write.format("delta").save(source)
    job.frame([(2, "b")]).write.format("delta").mode("append").save(source)
    result = job.run(source)
    assert (result.source_version, result.rows) == (1, 2)


def test_two_equal_jobs_at_once_write_each_row_once_and_pay_at_most_twice(job: Any) -> None:
    source = job.frame([(i, f"text {i % 8}") for i in range(16)])
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(job.run(source))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row.id for row in job.rows()] == list(range(16))
    assert 8 <= len(job.requests()) <= 16
    assert sum(result.rows for result in results) == 16
    assert all(result.rows + result.already_done == 16 for result in results)


@pytest.mark.parametrize(
    ("rows", "arguments", "error"),
    [
        ([(None, "a"), (2, "b")], {}, NullKey),
        ([(1, "a"), (1, "b")], {}, DuplicateKey),
        ([(1, "a")], {"keep": ["nope"]}, MissingColumn),
        ([(1, "a")], {"columns": {"text": "txt"}}, MissingColumn),
        ([(1, "a")], {"output": "run_id"}, ReservedColumn),
        ([(1, "a")], {"source": "/no/such/file.parquet"}, SourceNotFound),
        ([(1, "a")], {"source": "no_such_table"}, SourceNotFound),
        ([(1, "a")], {"into": "/proc/sparkinfer/labels"}, PermissionDenied),
    ],
)
def test_wrong_use_is_found_before_anything_is_asked_or_written(
    job: Any, rows: list[Any], arguments: dict[str, Any], error: type[Exception]
) -> None:
    source = arguments.pop("source", None) or job.frame(rows)
    with pytest.raises(error):
        job.run(source, **arguments)
    assert not job.log.exists()
    assert not (job.folder / "labels").exists()


def test_a_column_without_canonical_text_is_refused(job: Any) -> None:
    source = job.spark.sql("SELECT 1L AS id, 1.5D AS text")
    with pytest.raises(WrongColumnType, match="cast"):
        job.run(source)


def test_a_table_with_other_columns_is_refused(job: Any) -> None:
    job.spark.sql("SELECT 1L AS id, 'x' AS something").write.format("delta").save(job.into)
    with pytest.raises(TableSchemaMismatch, match="something") as refused:
        job.run(job.frame([(1, "a")]))
    assert "answer (string) is missing" in refused.value.message
    assert not job.log.exists()


def test_a_table_can_be_named_and_its_staging_too(job: Any) -> None:
    job.spark.sql("DROP TABLE IF EXISTS job_labels")
    staging = job.folder / "staging"
    result = job.run(job.frame([(1, "a"), (2, "b")]), into="job_labels", staging=str(staging))
    replaced = job.run(job.frame([(1, "a"), (2, "c")]), into="job_labels", staging=str(staging))
    assert (result.rows, replaced.rows) == (2, 1)
    assert job.spark.table("job_labels").count() == 2
    assert not list(staging.glob("*/*"))
    job.spark.sql("DROP TABLE job_labels")


def test_a_merge_reads_the_buckets_of_the_rows_that_it_replaces(job: Any) -> None:
    """Another prompt replaces every row; its input is the same, and so is its bucket."""
    rows, buckets = 400, 2
    source = job.frame([(i, f"text {i}") for i in range(rows)])
    job.run(source, buckets=buckets)
    reads = Reads(job.spark)
    read: dict[str, list[int]] = {"everywhere": [], "within": []}

    class Watched(DeltaSparkSink):
        where = "everywhere"

        def merge(self, *arguments: Any, within: Any = None) -> None:
            reads.since()
            super().merge(*arguments, within=within if self.where == "within" else None)
            read[self.where].append(reads.since())

    for where in read:
        Watched.where = where
        again = job.run(source, into=Watched(job.spark, job.into), udf=job.udf(system=f"Look {where}."))
        assert again.rows == rows == len(job.rows())
    print(f"rows read by {buckets} MERGEs into {rows} rows: {read}")
    assert len(read["within"]) == buckets
    # One of two buckets is left out of the search for matches, rows / 2 a MERGE; the files it rewrites are the same.
    assert sum(read["everywhere"]) - sum(read["within"]) > rows * buckets * 3 // 8
