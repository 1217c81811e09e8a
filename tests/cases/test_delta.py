"""Field failures 20 and 21: a chunk that is written twice, and a conflict that would repeat the inference."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.exceptions import ConcurrentAppendException
from deltalake import DeltaTable

from sparkinfer.errors import CommitConflict
from sparkinfer.sink.base import Commit, StagedRows
from sparkinfer.sink.delta_rs import DeltaRsSink
from sparkinfer.sink.delta_spark import DeltaSparkSink
from sparkinfer.sink.faults import mapped

NO_SPARK: Any = None


@pytest.mark.parametrize("handle", ["fresh", "stale"])
def test_case_20_the_same_chunk_committed_twice_without_a_jvm_gives_one_copy(tmp_path, monkeypatch, handle):
    schema = pa.schema([("row_key", pa.string())])
    DeltaTable.create(str(tmp_path / "table"), schema=schema)
    (tmp_path / "staged").mkdir()
    pq.write_table(pa.table({"row_key": ["a", "b"]}), tmp_path / "staged" / "part.parquet")
    chunk = StagedRows(path=str(tmp_path / "staged"), columns=("row_key",))
    sink = DeltaRsSink(NO_SPARK, str(tmp_path / "table"))
    before = DeltaTable(sink.table)

    def commit(run_id):
        return Commit(table_id="t", bucket=0, sequence=1, metadata={"run_id": run_id})

    sink.append(chunk, commit("first"))
    if handle == "stale":  # a writer that looked before the other one wrote
        monkeypatch.setattr(sink, "_load", lambda: before)
    with pytest.raises(CommitConflict):
        sink.append(chunk, commit("second"))
    monkeypatch.undo()
    assert DeltaTable(sink.table).count() == 2
    assert sink.find(commit("first")) == 1
    assert sink.find(commit("second")) is None


class ConflictingSink(DeltaSparkSink):
    """Its first commit of each kind meets a real conflict of Delta's."""

    def __init__(self, spark: Any, table: str) -> None:
        super().__init__(spark, table)
        self.tried: list[str] = []

    def append(self, staged: StagedRows, commit: Commit) -> None:
        self._conflict("append", commit)
        super().append(staged, commit)

    def merge(self, staged: StagedRows, on: Any, commit: Commit, **where: Any) -> None:
        self._conflict("merge", commit)
        super().merge(staged, on, commit, **where)

    def _conflict(self, kind: str, commit: Commit) -> None:
        self.tried.append(kind)
        if self.tried.count(kind) == 1:
            with mapped(table=self.table, doing=kind):
                raise ConcurrentAppendException("[DELTA_CONCURRENT_APPEND] Files were added by a concurrent update.")


def test_case_21_a_conflict_at_commit_repeats_the_commit_and_asks_nothing(job):
    sink = ConflictingSink(job.spark, job.into)
    first = job.run(job.frame([(i, f"text {i}") for i in range(8)]), into=sink, buckets=1)
    second = job.run(job.frame([(i, f"changed {i}") for i in range(8)]), into=sink)
    assert sink.tried == ["append", "append", "merge", "merge"]
    assert (first.requests, second.requests, len(job.requests())) == (8, 8, 16)
    assert [row.id for row in job.rows()] == list(range(8))
