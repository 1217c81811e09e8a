"""The command line against Spark and Delta, with the fake engine."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sparkinfer.cli.exits import ExitCode
from sparkinfer.cli.main import main

JOB = """
source: {folder}/reviews.parquet
into: {folder}/labels
key: id
keep: [id]
output: answer
udf:
  model: "fake:?fail=poison&log={folder}/engine.log"
  prompt: "Say something about {{text}}"
tracking: {{enabled: false}}
{more}
"""


@pytest.fixture
def job(tmp_path: Path, spark: SparkSession) -> Path:
    return write_job(tmp_path, ["a", "b", "c"])


def write_job(folder: Path, texts: list[str], *, more: str = "") -> Path:
    pq.write_table(pa.table({"id": list(range(len(texts))), "text": texts}), folder / "reviews.parquet")
    path = folder / "job.yaml"
    path.write_text(JOB.format(folder=folder, more=more))
    return path


def last_object(out: str) -> dict[str, object]:
    found = json.loads(out.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def asked(folder: Path) -> int:
    log = folder / "engine.log"
    return sum('"request"' in line for line in log.read_text().splitlines()) if log.exists() else 0


def test_a_job_runs_once_and_its_repeat_finds_nothing_to_do(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(job), "--json"]) == ExitCode.DONE
    first = last_object(capsys.readouterr().out)
    assert (first["rows"], first["failed"], first["exit_code"]) == (3, 0, 0)
    assert main(["run", str(job)]) == ExitCode.DONE
    assert "0 rows written" in capsys.readouterr().out
    assert asked(job.parent) == 3

    assert main(["status", str(job.parent / "labels"), "--json"]) == ExitCode.DONE
    found = last_object(capsys.readouterr().out)
    assert (found["rows"], found["failed"], found["configs"]) == (3, 0, 1)


def test_failed_rows_are_exit_3_and_so_is_the_repeat(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job(tmp_path, ["fine", "poison"])
    assert main(["run", str(job)]) == ExitCode.FAILED_ROWS
    assert "1 x INFERENCE_FAILED" in capsys.readouterr().out
    assert main(["run", str(job)]) == ExitCode.FAILED_ROWS
    assert "retry_failed" in capsys.readouterr().out
    assert main(["status", str(tmp_path / "labels")]) == ExitCode.DONE
    assert "1 failed" in capsys.readouterr().out


def test_failed_rows_are_exit_1_where_the_job_wants_none(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job(tmp_path, ["fine", "poison"], more="fail_on_error: true")
    assert main(["run", str(job)]) == ExitCode.FAILED
    assert capsys.readouterr().err.startswith("[FAILED_ROWS]")


def test_a_missing_source_and_a_missing_table_are_wrong_use(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job(tmp_path, ["a"])
    (tmp_path / "reviews.parquet").unlink()
    assert main(["run", str(job)]) == ExitCode.WRONG_USE
    assert capsys.readouterr().err.startswith("[SOURCE_NOT_FOUND]")
    assert main(["status", str(tmp_path / "nothing")]) == ExitCode.WRONG_USE
    assert capsys.readouterr().err.startswith("[SOURCE_NOT_FOUND]")
