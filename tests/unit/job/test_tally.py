"""Staged Parquet counted without Spark: what is there, not what was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkinfer.job.answers import ASKED, HARVESTED, ORIGIN, REUSED
from sparkinfer.job.pending import NEW, OLD_BUCKET, REPLACE, STATE
from sparkinfer.job.tally import PAID, count_rows, first_rows, rows_by_bucket

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "answer": pa.string(),
        "error_code": pa.string(),
        "finish_reason": pa.string(),
        "input_hash": pa.string(),
        "prompt_tokens": pa.int32(),
        "completion_tokens": pa.int32(),
        ORIGIN: pa.string(),
        PAID: pa.bool_(),
        STATE: pa.string(),
        OLD_BUCKET: pa.int32(),
    }
)


def row(number: int, **values: Any) -> dict[str, Any]:
    given = {
        "id": number,
        "answer": "a",
        "finish_reason": "stop",
        "input_hash": f"h{number}",
        "prompt_tokens": 10,
        "completion_tokens": 2,
        ORIGIN: ASKED,
        PAID: True,
        STATE: NEW,
    }
    return given | values


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / name)


def test_every_kind_of_row_is_counted_over_all_files(tmp_path: Path) -> None:
    folder = tmp_path / "_sparkinfer" / "run" / "rows-0" / "bucket=0"
    failed = {"answer": None, "finish_reason": "error", "completion_tokens": None}
    write(
        folder,
        "part-0.parquet",
        [row(1), row(2, **{PAID: False}), row(3, **{ORIGIN: REUSED, PAID: False, STATE: REPLACE, OLD_BUCKET: 7})],
    )
    write(folder, "part-1.parquet", [])
    write(
        folder,
        "part-2.parquet",
        [row(10, **failed, error_code="TIMEOUT"), row(9, **failed, error_code="OUT_OF_MEMORY")],
    )
    write(folder, "part-3.parquet", [row(5, finish_reason="skipped", prompt_tokens=0), row(6, **{ORIGIN: HARVESTED})])
    (folder / "_SUCCESS").touch()
    write(folder / "_temporary" / "0", "part-9.parquet", [row(99)])

    counts, lost = count_rows(str(folder), key=("id",))

    assert lost == 0
    assert counts.old_buckets == {7}
    assert counts.numbers() == {
        "rows": 7,
        "failed": 2,
        "skipped": 1,
        "reused": 1,
        "requests": 3,
        "replaces": 1,
        "prompt_tokens": 60,
        "completion_tokens": 10,
        "paid_prompt_tokens": 40,
        "paid_completion_tokens": 6,
    }
    assert counts.failures == {"TIMEOUT": 1, "OUT_OF_MEMORY": 1}
    assert counts.example == ("OUT_OF_MEMORY", "9", "h9")


def test_a_row_without_an_answer_is_lost(tmp_path: Path) -> None:
    nothing = {"finish_reason": None, "prompt_tokens": None, "completion_tokens": None, ORIGIN: None, PAID: None}
    write(tmp_path, "part-0.parquet", [row(1), row(2, **nothing)])
    counts, lost = count_rows(str(tmp_path), key=("id",))
    assert (counts.rows, counts.requests, lost) == (2, 1, 1)


def test_rows_of_buckets_and_a_few_of_them_as_text(tmp_path: Path) -> None:
    write(tmp_path / "bucket=3", "part-0.parquet", [row(1), row(2)])
    write(tmp_path / "bucket=3", "part-1.parquet", [row(3)])
    write(tmp_path / "bucket=0", "part-0.parquet", [row(4, answer=None)])
    (tmp_path / "_SUCCESS").touch()
    assert rows_by_bucket(str(tmp_path)) == {0: 1, 3: 3}
    assert first_rows(str(tmp_path / "bucket=3"), ["id", "answer"], rows=1) == ({"id": "1", "answer": "a"},)
    assert first_rows(str(tmp_path / "bucket=0"), ["answer"], rows=5) == ({"answer": None},)
