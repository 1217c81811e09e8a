from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sparkinfer import status
from sparkinfer.cli.demo import ROWS
from sparkinfer.config.load import load_job

ROOT = Path(__file__).parents[2]


def test_the_labelling_example_runs(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)  # the session is shared
    into = str(tmp_path / "labels")
    monkeypatch.setattr(sys, "argv", ["label_reviews.py", "--rows", "6", "--model", "fake", "--into", into])
    runpy.run_path(str(ROOT / "examples" / "label_reviews.py"), run_name="__main__")
    found = status(into)
    assert (found.rows, found.failed) == (6, 0)


def test_the_example_job_file_is_valid_and_names_what_is_there() -> None:
    job = load_job(ROOT / "examples" / "job.yaml")
    source = pq.read_schema(ROOT / job.source)
    assert {*job.key, *job.keep, *(job.columns or {}).values()} <= set(source.names)


def test_the_demos_table_is_the_examples_table() -> None:
    shipped = pq.read_table(ROOT / "sparkinfer" / "cli" / "data" / "reviews.parquet")
    assert shipped.slice(0, ROWS).equals(pq.read_table(ROOT / "examples" / "data" / "reviews.parquet"))
