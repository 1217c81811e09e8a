"""The demo with the sample model, on few rows; the fake engine has no weights to compare row by row with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkinfer.cli import demo, row_by_row
from sparkinfer.cli.exits import ExitCode
from sparkinfer.cli.main import main

pytestmark = pytest.mark.timeout(900)


def test_the_demo_measures_once_and_shows_it_again_without_inferring(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "SAMPLE_ROWS", 2)
    words = ["demo", "--rows", "6", "--out", str(tmp_path / "demo"), "--json"]
    assert main(words) == ExitCode.DONE
    said = capsys.readouterr()
    first = json.loads(said.out.splitlines()[-1])
    assert first["result"]["rows"] == 6
    assert sum(first["labels"].values()) == 6
    assert set(first["labels"]) <= set(demo.CHOICES)
    assert len(first["samples"]) == 5
    assert first["comparison"]["same_answers"] == 2
    assert first["result"]["mlflow_run_id"]
    for word in ("valid rows/s", "speed-up", "accuracy", "MLflow run", "Where to look next"):
        assert word in said.err

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the second demo must start nothing")

    monkeypatch.setattr(demo, "run_job", refuse)
    monkeypatch.setattr(demo, "quiet_session", refuse)
    monkeypatch.setattr(row_by_row, "measure", refuse)
    assert main(words) == ExitCode.DONE
    again = capsys.readouterr()
    assert json.loads(again.out.splitlines()[-1]) == first
    assert "Nothing was inferred now" in again.err
