"""The sink on Spark's Delta: compare-and-set by name and by path, for appends and merges."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sparkinfer.errors import SparkInferError
from sparkinfer.sink.base import BUCKETS_PROPERTY, Commit, StagedRows, TableColumn
from sparkinfer.sink.delta_rs import DeltaRsSink
from sparkinfer.sink.delta_spark import DeltaSparkSink

COLUMNS = (TableColumn(name="row_key", ddl="STRING"), TableColumn(name="n", ddl="INT"))


@pytest.fixture(params=["path", "name"])
def sink(request: Any, spark: Any, tmp_path: Any) -> Iterator[DeltaSparkSink]:
    table = str(tmp_path / "a table") if request.param == "path" else "sink_table"
    spark.sql("DROP TABLE IF EXISTS sink_table")
    yield DeltaSparkSink(spark, table)
    spark.sql("DROP TABLE IF EXISTS sink_table")


def commit(table_id: str, sequence: int, *, run_id: str = "r1") -> Commit:
    return Commit(table_id=table_id, bucket=2, sequence=sequence, metadata={"run_id": run_id})


def test_one_copy_of_each_transaction(sink: DeltaSparkSink, spark: Any, tmp_path: Any) -> None:
    def stage(name: str, rows: list[tuple[str, int]]) -> StagedRows:
        path = str(tmp_path / name)
        spark.createDataFrame(rows, "row_key string, n int").selectExpr("*", "'x' AS __extra").write.mode(
            "overwrite"
        ).parquet(path)
        return StagedRows(path=path, columns=("row_key", "n"))

    def rows() -> list[tuple[str, int]]:
        facts = sink.facts()
        assert facts is not None
        return sorted((row.row_key, row.n) for row in sink.rows(facts.version).collect())

    def without_a_word(write: Any, *arguments: Any) -> None:
        try:
            write(*arguments)
        except SparkInferError as error:
            assert error.code == "COMMIT_CONFLICT"

    assert sink.facts() is None
    sink.create(COLUMNS, {BUCKETS_PROPERTY: "4"})
    sink.create(COLUMNS, {BUCKETS_PROPERTY: "9"})
    made = sink.facts()
    assert made is not None
    assert (made.version, made.properties[BUCKETS_PROPERTY], made.sequence(2)) == (0, "4", 0)
    assert [(c.name, c.ddl) for c in made.columns] == [("row_key", "string"), ("n", "int")]

    first = stage("first", [("a", 1), ("b", 1)])
    sink.append(first, commit(made.table_id, 1))
    without_a_word(sink.append, first, commit(made.table_id, 1, run_id="r2"))
    assert rows() == [("a", 1), ("b", 1)]
    assert sink.find(commit(made.table_id, 1)) == 1
    assert sink.find(commit(made.table_id, 1, run_id="r2")) is None

    second = stage("second", [("b", 2), ("c", 2)])
    sink.merge(second, ["row_key"], commit(made.table_id, 2))
    without_a_word(sink.merge, stage("late", [("b", 3)]), ["row_key"], commit(made.table_id, 2, run_id="r2"))
    without_a_word(sink.append, first, commit(made.table_id, 2, run_id="r3"))
    assert rows() == [("a", 1), ("b", 2), ("c", 2)]
    facts = sink.facts()
    assert facts is not None
    assert facts.sequence(2) == 2
    assert sink.find(commit(made.table_id, 2)) == 2
    for _ in range(2):
        sink.remove(stage("gone", [("c", 2), ("a", 7)]), ["row_key", "n"], {"run_id": "r4", "settles": 2})
    assert rows() == [("a", 1), ("b", 2)]
    facts = sink.facts()
    assert facts is not None
    assert facts.sequence(2) == 2
    assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None, "the user's session is left as it was"


def test_a_log_that_another_writer_is_just_making_is_waited_for(spark: Any, tmp_path: Any) -> None:
    """Between its folder and its first entry a table is "not empty and not a Delta table" to everybody else."""
    made = DeltaSparkSink(spark, str(tmp_path / "made"))
    made.create(COLUMNS, {BUCKETS_PROPERTY: "4"})
    late = tmp_path / "late"
    (late / "_delta_log").mkdir(parents=True)
    (late / "other.txt").touch()

    def finish() -> None:
        for entry in (tmp_path / "made" / "_delta_log").glob("*.json"):
            shutil.copy(entry, late / "_delta_log" / entry.name)

    writer = threading.Timer(1.0, finish)
    writer.start()
    sink = DeltaSparkSink(spark, str(late))
    sink.create(COLUMNS, {BUCKETS_PROPERTY: "9"})
    writer.join()
    facts = sink.facts()
    assert facts is not None
    assert facts.properties[BUCKETS_PROPERTY] == "4"


def test_a_table_made_with_rows_is_not_empty_in_its_first_version(spark: Any, tmp_path: Any) -> None:
    path = str(tmp_path / "copy")
    spark.createDataFrame([("a", 1)], "row_key string, n int").write.format("delta").save(path)
    for sink in (DeltaSparkSink(spark, path), DeltaRsSink(spark, path)):
        facts = sink.facts()
        assert facts is not None
        assert (facts.version, facts.is_empty) == (0, False)
