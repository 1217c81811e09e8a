"""delta-rs records transactions but does not check them; the sink does (delta-io/delta-rs#2580, #3821)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from sparkinfer.errors import CommitConflict
from sparkinfer.sink.base import BUCKETS_PROPERTY, Commit, StagedRows
from sparkinfer.sink.delta_rs import DeltaRsSink, table_columns
from sparkinfer.udf.spark_types import result_struct_type

SCHEMA = pa.schema([("row_key", pa.string()), ("n", pa.int32()), ("tags", pa.list_(pa.string()))])
NO_SPARK: Any = None


@pytest.fixture
def sink(tmp_path: Path) -> DeltaRsSink:
    path = str(tmp_path / "table")
    DeltaTable.create(path, schema=SCHEMA, configuration={BUCKETS_PROPERTY: "4"}, raise_if_key_not_exists=False)
    return DeltaRsSink(NO_SPARK, path)


def stage(tmp_path: Path, keys: list[str], n: int = 1) -> StagedRows:
    folder = tmp_path / f"staged-{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    rows = pa.table(
        {
            "__extra": ["e"] * len(keys),
            "row_key": keys,
            "n": pa.array([n] * len(keys), pa.int32()),
            "tags": [["t"]] * len(keys),
        }
    )
    pq.write_table(rows, folder / "part-0.parquet")
    (folder / "_SUCCESS").touch()
    return StagedRows(path=str(folder), columns=("row_key", "n", "tags"))


def commit(sequence: int, *, bucket: int = 2, run_id: str = "r1") -> Commit:
    return Commit(table_id="t", bucket=bucket, sequence=sequence, metadata={"run_id": run_id})


def test_the_same_transaction_twice_gives_one_copy(sink: DeltaRsSink, tmp_path: Path) -> None:
    rows = stage(tmp_path, ["a", "b"])
    sink.append(rows, commit(1))
    with pytest.raises(CommitConflict):
        sink.append(rows, commit(1, run_id="r2"))
    assert DeltaTable(sink.table).count() == 2


def test_facts_hold_properties_columns_and_each_buckets_sequence(sink: DeltaRsSink, tmp_path: Path) -> None:
    sink.append(stage(tmp_path, ["a"]), commit(1))
    sink.append(stage(tmp_path, ["b"]), commit(2))
    sink.append(stage(tmp_path, ["c"]), commit(1, bucket=0))
    facts = sink.facts()
    assert facts is not None
    assert (facts.version, facts.properties[BUCKETS_PROPERTY]) == (3, "4")
    assert (facts.sequence(2), facts.sequence(0), facts.sequence(1)) == (2, 1, 0)
    assert [(c.name, c.ddl) for c in facts.columns] == [("row_key", "string"), ("n", "int"), ("tags", "array<string>")]


def test_a_commit_is_found_by_run_bucket_and_sequence(sink: DeltaRsSink, tmp_path: Path) -> None:
    sink.append(stage(tmp_path, ["a"]), commit(1))
    assert sink.find(commit(1)) == 1
    assert sink.find(commit(1, run_id="r2")) is None
    assert sink.find(commit(2)) is None


def test_merge_replaces_and_adds_once(sink: DeltaRsSink, tmp_path: Path) -> None:
    sink.append(stage(tmp_path, ["a", "b"]), commit(1))
    sink.merge(stage(tmp_path, ["b", "c"], n=9), ["row_key"], commit(2))
    with pytest.raises(CommitConflict):
        sink.merge(stage(tmp_path, ["b", "c"], n=5), ["row_key"], commit(2))
    rows = DeltaTable(sink.table).to_pyarrow_table()
    assert dict(zip(rows["row_key"].to_pylist(), rows["n"].to_pylist(), strict=True)) == {"a": 1, "b": 9, "c": 9}
    assert sink.find(commit(2)) == 2


def test_a_merge_may_name_the_buckets_to_look_in(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    schema = pa.schema([*SCHEMA, ("bucket", pa.int32())])
    DeltaTable.create(path, schema=schema, raise_if_key_not_exists=False)
    sink = DeltaRsSink(NO_SPARK, path)

    def rows(keys: list[str], *, bucket: int, n: int) -> StagedRows:
        staged = stage(tmp_path, keys, n=n)
        file = f"{staged.path}/part-0.parquet"
        table = pq.read_table(file)
        pq.write_table(table.append_column("bucket", pa.array([bucket] * len(keys), pa.int32())), file)
        return StagedRows(path=staged.path, columns=(*staged.columns, "bucket"))

    sink.append(rows(["a", "b"], bucket=2, n=1), commit(1))
    sink.append(rows(["c"], bucket=3, n=1), commit(1, bucket=3))
    sink.merge(rows(["b", "d"], bucket=3, n=9), ["row_key"], commit(2, bucket=3), within=[2])
    found = DeltaTable(path).to_pyarrow_table().select(["row_key", "n", "bucket"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [("a", 1, 2), ("b", 9, 3), ("c", 1, 3), ("d", 9, 3)]


def test_rows_are_taken_out_once_and_sequences_stay(sink: DeltaRsSink, tmp_path: Path) -> None:
    sink.append(stage(tmp_path, ["a", "b"]), commit(1))
    sink.append(stage(tmp_path, ["b"], n=9), commit(1, bucket=0))
    gone = replace(stage(tmp_path, ["b"]), columns=("row_key", "n"))
    for _ in range(2):
        sink.remove(gone, ["row_key", "n"], {"run_id": "r1", "settles": 2})
    rows = DeltaTable(sink.table).to_pyarrow_table()
    assert sorted(zip(rows["row_key"].to_pylist(), rows["n"].to_pylist(), strict=True)) == [("a", 1), ("b", 9)]
    facts = sink.facts()
    assert facts is not None
    assert (facts.sequence(2), facts.sequence(0)) == (1, 1)


def test_a_writer_with_a_stale_handle_is_a_conflict(
    sink: DeltaRsSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = DeltaTable(sink.table)
    sink.append(stage(tmp_path, ["a"]), commit(1, run_id="fast"))
    monkeypatch.setattr(sink, "_load", lambda: stale)
    with pytest.raises(CommitConflict):
        sink.append(stage(tmp_path, ["a"]), commit(1))
    assert DeltaTable(sink.table).count() == 1


def test_no_table_is_none_and_types_are_sparks(tmp_path: Path) -> None:
    assert DeltaRsSink(NO_SPARK, str(tmp_path / "nothing")).facts() is None
    schema = pa.schema(
        [("m", pa.map_(pa.string(), pa.string())), ("s", pa.struct([("x", pa.int64())])), ("d", pa.decimal128(10, 2))]
    )
    table = DeltaTable.create(str(tmp_path / "t"), schema=schema)
    assert [c.ddl for c in table_columns(table)] == ["map<string,string>", "struct<x:bigint>", "decimal(10,2)"]


def test_a_table_is_made_with_sparks_types_and_only_once(tmp_path: Path) -> None:
    schema = StructType(
        [StructField("id", LongType()), StructField("d", DecimalType(10, 2)), *result_struct_type(logprobs=True).fields]
    )
    spark: Any = SimpleNamespace(createDataFrame=lambda rows, ddl: SimpleNamespace(schema=schema))
    sink = DeltaRsSink(spark, str(tmp_path / "t"))
    sink.create([], {BUCKETS_PROPERTY: "2"})
    sink.create([], {BUCKETS_PROPERTY: "3"})
    facts = sink.facts()
    assert facts is not None
    assert (facts.version, facts.properties[BUCKETS_PROPERTY]) == (0, "2")
    assert [(c.name, c.ddl) for c in facts.columns] == [(f.name, f.dataType.simpleString()) for f in schema]
