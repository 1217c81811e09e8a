"""A disk that is full at commit, a table on a read-only disk: a specific error, nothing half-written, nothing asked again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkinfer import llm_udf, run
from sparkinfer.errors import DiskFull, PermissionDenied
from sparkinfer.tracking.base import NullTracker
from tests.support.limits import small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[str], object]]]:
    """A small disk and a function that mounts it again with other options."""
    place = tmp_path / "disk"
    with small_disk(place, size="400k") as remount:
        yield place, remount


@pytest.fixture
def label(spark: Any, tmp_path: Path) -> Callable[..., Any]:
    udf = llm_udf(model=f"fake:?log={tmp_path / 'engine.log'}", prompt="Say {text}")

    def run_it(rows: int, into: Path, **arguments: Any) -> Any:
        import pyspark.sql.functions as sql

        noise = sql.concat(*(sql.sha2(sql.concat("id", sql.lit(i)), 512) for i in range(60)))
        source = spark.range(rows).withColumn("text", sql.concat(sql.lit("text "), "id")).withColumn("noise", noise)
        given = {
            "key": "id",
            "keep": ["noise"],
            "output": "answer",
            "buckets": 1,
            "tracker": NullTracker(),
            **arguments,
        }
        return run(spark, source=source, into=str(into), udf=udf, **given)

    return run_it


def requests(tmp_path: Path) -> int:
    log = tmp_path / "engine.log"
    return sum(json.loads(line)["event"] == "request" for line in log.read_text().splitlines()) if log.exists() else 0


def test_a_disk_full_at_commit_keeps_the_answers(spark: Any, disk: Any, label: Any, tmp_path: Path) -> None:
    place, remount = disk
    with pytest.raises(DiskFull, match="no space is left") as full:
        label(200, place / "labels", staging=str(tmp_path / "staging"))
    assert str(tmp_path / "staging") in full.value.message
    assert spark.read.format("delta").load(str(place / "labels")).count() == 0
    assert requests(tmp_path) == 200

    remount("size=64m")
    result = label(200, place / "labels", staging=str(tmp_path / "staging"))
    assert (result.rows, spark.read.format("delta").load(str(place / "labels")).count()) == (200, 200)
    assert requests(tmp_path) == 200, "the answers were staged; nothing is asked again"


def test_a_table_that_cannot_be_written_is_found_before_anything_is_asked(
    disk: Any, label: Any, tmp_path: Path
) -> None:
    place, remount = disk
    label(2, place / "labels")
    remount("ro")
    with pytest.raises(PermissionDenied):
        label(4, place / "labels")
    assert requests(tmp_path) == 2
