"""Facts and commits of a table, without a table."""

from __future__ import annotations

import json

import pytest

from sparkinfer.errors import CommitConflict, CommitFailed, DiskFull, PermissionDenied
from sparkinfer.sink.base import Commit, TableFacts, last_sequences, parse_metadata
from sparkinfer.sink.faults import job_error
from sparkinfer.sink.location import is_path, sql_name


def commit(**changes: object) -> Commit:
    values = {
        "table_id": "t",
        "bucket": 3,
        "sequence": 2,
        "metadata": {"run_id": "r1", "counts": {"rows": 5}},
        **changes,
    }
    return Commit(**values)  # type: ignore[arg-type]


def test_metadata_comes_back_as_it_was_written() -> None:
    metadata = parse_metadata(commit().user_metadata())
    assert (metadata["run_id"], metadata["bucket"], metadata["sequence"], metadata["counts"]) == (
        "r1",
        3,
        2,
        {"rows": 5},
    )
    assert commit().is_own(metadata)
    assert not commit(sequence=3).is_own(metadata)
    assert not commit(metadata={"run_id": "r2"}).is_own(metadata)


@pytest.mark.parametrize("text", [None, "", "no json", "[1]", '{"run_id": "of another tool"}'])
def test_metadata_of_other_writers_is_nothing(text: str | None) -> None:
    assert parse_metadata(text) == {}


def test_a_bucket_that_a_shortened_history_does_not_name_counts_from_its_oldest_version() -> None:
    history = [
        (12, json.loads(commit(sequence=4).user_metadata())),
        (11, {}),
        (10, json.loads(commit().user_metadata())),
    ]
    facts = TableFacts(version=12, table_id="t", columns=(), sequences=last_sequences(history), oldest=10)
    assert (facts.sequence(3), facts.sequence(4)) == (4, 10)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[DELTA_CONCURRENT_APPEND] ConcurrentAppendException: Files were added", CommitConflict),
        ("Concurrent transaction failed", CommitConflict),
        ("java.io.IOException: No space left on device", DiskFull),
        ("Permission denied (os error 13)", PermissionDenied),
        ("java.io.FileNotFoundException: /ro/x (Read-only file system)", PermissionDenied),
        ("anything else", CommitFailed),
    ],
)
def test_a_writers_text_becomes_one_of_our_errors(text: str, error: type[Exception]) -> None:
    found = job_error(RuntimeError(text), table="/out/labels", doing="Committing bucket 3")
    assert type(found) is error
    assert "Committing bucket 3 of /out/labels failed" in found.message


def test_a_cause_further_down_is_found() -> None:
    outer = ValueError("Job aborted.")
    outer.__cause__ = OSError("No space left on device")
    assert type(job_error(outer, table="t", doing="x")) is DiskFull


@pytest.mark.parametrize(
    ("table", "path"),
    [("a.b.c", False), ("labels", False), ("out/labels", True), ("/x", True), ("s3://b/x", True), ("file:/x", True)],
)
def test_a_path_has_a_slash_or_a_scheme(table: str, path: bool) -> None:
    assert is_path(table) is path


def test_sql_quotes_paths() -> None:
    assert sql_name("/a b/`c`") == "delta.`/a b/``c```"
    assert sql_name("main.a.b") == "main.a.b"
