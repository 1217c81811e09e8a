"""The sink on Spark's Delta looks at a local table's log without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from sparkinfer.errors import JobError, PermissionDenied
from sparkinfer.sink.base import Commit, TableColumn
from sparkinfer.sink.delta_spark import DeltaSparkSink


class SparkWasAskedError(Exception):
    """Only what the log cannot tell may be asked of Spark."""


class NoSpark:
    def __getattr__(self, name: str) -> Any:
        raise SparkWasAskedError(name)


def commit(sequence: int) -> Commit:
    return Commit(table_id="t", bucket=3, sequence=sequence, metadata={"run_id": "r1"})


def sink_on(table: str) -> DeltaSparkSink:
    spark: Any = NoSpark()
    return DeltaSparkSink(spark, table)


def test_facts_and_commits_of_a_local_table_come_from_its_log(tmp_path: Path) -> None:
    table = str(tmp_path / "a table")
    rows = pa.table({"row_key": ["a"], "n": pa.array([1], pa.int64())})
    DeltaTable.create(table, rows.schema, configuration={"sparkinfer.buckets": "4"}, raise_if_key_not_exists=False)
    metadata = CommitProperties(custom_metadata={"userMetadata": commit(7).user_metadata()})
    write_deltalake(table, rows, mode="append", commit_properties=metadata)

    sink = sink_on(table)
    facts = sink.facts()

    assert facts is not None
    assert (facts.version, facts.oldest, dict(facts.properties)) == (1, 0, {"sparkinfer.buckets": "4"})
    assert (facts.sequence(3), facts.sequence(2)) == (7, 0)
    assert facts.columns == (TableColumn(name="row_key", ddl="string"), TableColumn(name="n", ddl="bigint"))
    assert sink.find(commit(7)) == 1
    assert sink.find(commit(8)) is None


@pytest.mark.parametrize("table", ["labels", "s3://bucket/labels"])
def test_a_table_elsewhere_is_asked_of_spark(table: str) -> None:
    with pytest.raises(JobError, match="SparkWasAskedError|sql"):
        sink_on(table).find(commit(1))


def test_a_log_that_delta_rs_cannot_read_is_asked_of_spark(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"n": [1]}))
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text("{torn")
    with pytest.raises(JobError, match="SparkWasAskedError|sql"):
        sink_on(str(tmp_path)).find(commit(1))


def test_a_history_that_may_not_be_read_is_an_error_of_ours() -> None:
    class Refuses:
        def sql(self, _text: str) -> object:
            raise SparkWasAskedError("DESCRIBE HISTORY: User does not have permission SELECT on table")

    sink = DeltaSparkSink(Refuses(), "catalog.schema.table")  # type: ignore[arg-type]
    with pytest.raises(PermissionDenied, match="Reading the history"):
        sink.find(Commit(table_id="t", bucket=0, sequence=1, metadata={}))
