"""The committer against a table in memory: compare-and-set, looked for afterwards, committed again from staging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkinfer.errors import CommitConflict, CommitFailed, DiskFull
from sparkinfer.job.commit import MAX_ATTEMPTS, Committer, StagedBucket
from sparkinfer.job.counts import Counts
from sparkinfer.sink.base import Commit, StagedRows, TableColumn, TableFacts
from sparkinfer.sink.memory import MemorySink

COLUMNS = (TableColumn(name="row_key", ddl="string"), TableColumn(name="answer", ddl="string"))


class Stage:
    """Stages rows as Parquet files; restages those whose key the table does not have."""

    def __init__(self, folder: Path, sink: MemorySink) -> None:
        self._folder = folder
        self._sink = sink
        self.restaged = 0

    def rows(self, keys: list[str], *, bucket: int = 0, replaces: int = 0, answer: str = "x") -> StagedBucket:
        path = self._folder / f"{len(list(self._folder.iterdir()))}.parquet"
        pq.write_table(
            pa.table({"row_key": pa.array(keys, pa.string()), "answer": pa.array([answer] * len(keys))}), path
        )
        rows = StagedRows(path=str(path), columns=("row_key", "answer"))
        return StagedBucket(bucket=bucket, rows=rows, counts=Counts(rows=len(keys), replaces=replaces))

    def again(self, staged: StagedBucket, snapshot: TableFacts) -> StagedBucket:
        self.restaged += 1
        have = set(keys_of(self._sink))
        keys = pq.read_table(staged.rows.path)["row_key"].to_pylist()
        return self.rows([key for key in keys if key not in have], bucket=staged.bucket)

    def doubles(self, staged: StagedBucket | None, version: int) -> StagedRows | None:
        """Of keys of the bucket (of no bucket: of any) that stand twice all but the row with the last answer."""
        everything = set(keys_of(self._sink))
        keys = everything if staged is None else set(pq.read_table(staged.rows.path)["row_key"].to_pylist())
        rows = [row for row in self._sink.to_arrow().to_pylist() if row["row_key"] in keys]
        newest = {row["row_key"]: row["answer"] for row in sorted(rows, key=lambda row: str(row["answer"]))}
        old = [row for row in rows if row["answer"] != newest[row["row_key"]]]
        if not old:
            return None
        path = self._folder / f"{len(list(self._folder.iterdir()))}.parquet"
        pq.write_table(pa.Table.from_pylist(old), path)
        return StagedRows(path=str(path), columns=("row_key", "answer"))


def keys_of(sink: MemorySink) -> list[str]:
    table = sink.to_arrow()
    return sorted(table["row_key"].to_pylist()) if "row_key" in table.column_names else []


def committer(sink: MemorySink, stage: Stage, run_id: str = "run-1") -> Committer:
    facts = sink.facts()
    assert facts is not None
    return Committer(
        sink,
        snapshot=facts,
        merge_keys=("row_key",),
        metadata={"run_id": run_id},
        restage=stage.again,
        doubles=stage.doubles,
        pause=lambda seconds: None,
    )


@pytest.fixture
def sink() -> MemorySink:
    made = MemorySink()
    made.create(COLUMNS, {})
    return made


@pytest.fixture
def stage(tmp_path: Path, sink: MemorySink) -> Stage:
    return Stage(tmp_path, sink)


def test_buckets_are_appended_one_after_the_other(sink: MemorySink, stage: Stage) -> None:
    work = committer(sink, stage)
    first = work.commit(stage.rows(["a", "b"], bucket=0))
    second = work.commit(stage.rows(["c"], bucket=1))
    assert (first.version, second.version) == (1, 2)
    assert keys_of(sink) == ["a", "b", "c"]
    assert sink.commits[1]["run_id"] == "run-1"
    assert sink.commits[1]["counts"]["rows"] == 2


def test_rows_that_replace_older_ones_are_merged(sink: MemorySink, stage: Stage) -> None:
    committer(sink, stage).commit(stage.rows(["a", "b"]))
    committer(sink, stage, "run-2").commit(stage.rows(["a"], replaces=1, answer="new"))
    answers = dict(zip(*(sink.to_arrow()[c].to_pylist() for c in ("row_key", "answer")), strict=True))
    assert answers == {"a": "new", "b": "x"}


@pytest.mark.parametrize(("buckets", "within"), [({3, 1}, (1, 3)), ({3, None}, None), (set(), None)])
def test_a_merge_looks_only_where_the_older_rows_are(
    sink: MemorySink, stage: Stage, monkeypatch: pytest.MonkeyPatch, buckets: set[int | None], within: Any
) -> None:
    def merge(*arguments: Any, **where: Any) -> None:
        told.append(where["within"])
        real(*arguments, **where)

    told: list[Any] = []
    real: Callable[..., Any] = sink.merge
    monkeypatch.setattr(sink, "merge", merge)
    staged = stage.rows(["a"], replaces=1)
    committer(sink, stage).commit(replace(staged, counts=replace(staged.counts, old_buckets=frozenset(buckets))))
    assert told == [within]


def test_a_writer_that_was_faster_takes_its_rows_out_of_the_next_attempt(sink: MemorySink, stage: Stage) -> None:
    late = committer(sink, stage, "late")
    committer(sink, stage, "fast").commit(stage.rows(["a", "b"]))
    done = late.commit(stage.rows(["a", "b", "c"]))
    assert (done.counts.rows, done.attempts) == (1, 2)
    assert keys_of(sink) == ["a", "b", "c"]


def test_a_twin_that_wrote_everything_leaves_nothing_to_commit(sink: MemorySink, stage: Stage) -> None:
    late = committer(sink, stage, "late")
    committer(sink, stage, "fast").commit(stage.rows(["a"]))
    done = late.commit(stage.rows(["a"]))
    assert (done.version, done.counts.rows) == (None, 0)
    assert keys_of(sink) == ["a"]


def test_an_append_that_is_dropped_silently_is_noticed(
    stage: Stage, sink: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(staged: StagedRows, commit: Commit) -> None:
        if calls:
            real(staged, commit)
        calls.append(commit.sequence)

    calls: list[int] = []
    real: Callable[..., Any] = sink.append
    monkeypatch.setattr(sink, "append", append)
    assert committer(sink, stage).commit(stage.rows(["a"])).attempts == 2
    assert keys_of(sink) == ["a"]


def test_a_commit_that_landed_although_its_writer_raised_counts(
    stage: Stage, sink: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(staged: StagedRows, commit: Commit) -> None:
        real(staged, commit)
        raise CommitFailed("the connection broke after the commit.")

    real: Callable[..., Any] = sink.append
    monkeypatch.setattr(sink, "append", append)
    done = committer(sink, stage).commit(stage.rows(["a"]))
    assert (done.version, stage.restaged) == (1, 0)
    assert keys_of(sink) == ["a"]


@pytest.mark.parametrize("error", [DiskFull("full."), CommitFailed("broken.")])
def test_an_error_that_is_no_conflict_ends_the_job(
    stage: Stage, sink: MemorySink, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def append(staged: StagedRows, commit: Commit) -> None:
        raise error

    monkeypatch.setattr(sink, "append", append)
    with pytest.raises(type(error)):
        committer(sink, stage).commit(stage.rows(["a"]))
    assert keys_of(sink) == []


def test_losing_for_ever_ends_in_an_error(stage: Stage, sink: MemorySink, monkeypatch: pytest.MonkeyPatch) -> None:
    def append(staged: StagedRows, commit: Commit) -> None:
        raise CommitConflict("another writer was faster.")

    monkeypatch.setattr(sink, "append", append)
    with pytest.raises(CommitFailed, match=f"{MAX_ATTEMPTS} times"):
        committer(sink, stage).commit(stage.rows(["a"]))
    assert stage.restaged == MAX_ATTEMPTS


def test_a_table_that_was_made_anew_ends_the_job(
    stage: Stage, sink: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = committer(sink, stage, "late")
    committer(sink, stage, "fast").commit(stage.rows(["a"]))
    monkeypatch.setattr(sink, "facts", lambda: None)
    with pytest.raises(CommitFailed, match="made anew"):
        late.commit(stage.rows(["b"]))


def test_a_key_that_another_job_wrote_with_another_input_stands_once(sink: MemorySink, stage: Stage) -> None:
    """Their buckets differ, so that no compare-and-set meets; the later one sees the other's commit and settles it."""
    late = committer(sink, stage, "late")
    committer(sink, stage, "fast").commit(stage.rows(["a", "b"], bucket=0, answer="old"))
    done = late.commit(stage.rows(["a", "c"], bucket=1, answer="x"))
    assert done.version == 2
    assert keys_of(sink) == ["a", "b", "c"]
    assert sink.commits[-1]["settles"] == 1
    assert sink.commits[-1]["run_id"] == "late"


def test_buckets_behind_a_commit_of_another_job_are_compared_again_before_they_are_written(
    sink: MemorySink, stage: Stage
) -> None:
    late = committer(sink, stage, "late")
    fast = committer(sink, stage, "fast")
    fast.commit(stage.rows(["a", "b"], bucket=0))
    late.commit(stage.rows(["c"], bucket=1))
    assert stage.restaged == 0
    assert late.commit(stage.rows(["b"], bucket=2)).version is None
    assert keys_of(sink) == ["a", "b", "c"]
    assert stage.restaged == 1


def test_buckets_behind_one_that_lost_are_compared_again_too(sink: MemorySink, stage: Stage) -> None:
    late = committer(sink, stage, "late")
    committer(sink, stage, "fast").commit(stage.rows(["a"], bucket=0))
    assert late.commit(stage.rows(["a", "c"], bucket=0)).attempts == 2
    assert late.commit(stage.rows(["a"], bucket=1)).version is None
    assert keys_of(sink) == ["a", "c"]


def test_alone_nothing_is_compared_or_looked_for_again(
    sink: MemorySink, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        pytest.fail("nobody else was there")

    work = committer(sink, stage)
    monkeypatch.setattr(sink, "facts", refuse)
    monkeypatch.setattr(sink, "remove", refuse)
    for bucket in range(4):
        work.commit(stage.rows([f"key {bucket}"], bucket=bucket))
    assert (len(keys_of(sink)), stage.restaged) == (4, 0)


def test_settling_what_was_found_hides_no_commit_of_another_job(sink: MemorySink, stage: Stage) -> None:
    """Another job commits between the snapshot and the settling: the first bucket after it is compared again."""
    committer(sink, stage, "first").commit(stage.rows(["old"], bucket=0, answer="x"))
    late = committer(sink, stage, "late")
    committer(sink, stage, "fast").commit(stage.rows(["a"], bucket=1))
    late.settle()
    assert late.commit(stage.rows(["a"], bucket=2)).version is None
    assert keys_of(sink) == ["a", "old"]
    assert stage.restaged == 1


@pytest.mark.parametrize("losses", [1, MAX_ATTEMPTS])
def test_settling_is_tried_again_against_other_writers(
    sink: MemorySink, stage: Stage, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    def remove(*arguments: Any) -> None:
        lost.append(arguments)
        if len(lost) <= losses:
            raise CommitConflict("another writer was faster.")
        real(*arguments)

    lost: list[Any] = []
    real: Callable[..., Any] = sink.remove
    monkeypatch.setattr(sink, "remove", remove)
    late = committer(sink, stage, "late")
    committer(sink, stage, "fast").commit(stage.rows(["a"], bucket=0, answer="old"))
    if losses < MAX_ATTEMPTS:
        late.commit(stage.rows(["a"], bucket=1, answer="x"))
        assert keys_of(sink) == ["a"]
    else:
        with pytest.raises(CommitFailed, match="stand twice"):
            late.commit(stage.rows(["a"], bucket=1, answer="x"))


def test_a_table_that_was_removed_and_made_anew_by_the_next_commit_is_not_taken_for_the_jobs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta makes a table where it is missing: the rows that were committed before are gone, and the last commit succeeds."""
    sink = MemorySink()
    sink.create(COLUMNS, {})
    stage = Stage(tmp_path, sink)
    writer = committer(sink, stage)
    writer.commit(stage.rows(["a"]))
    writer.check_same_table()
    facts = sink.facts
    monkeypatch.setattr(sink, "facts", lambda: replace(facts(), table_id="another", version=0))
    monkeypatch.setattr(sink, "find", lambda commit: 0)  # as version 0 of the table that the append has made
    with pytest.raises(CommitFailed, match="made anew"):
        writer.commit(stage.rows(["b"], bucket=1))
