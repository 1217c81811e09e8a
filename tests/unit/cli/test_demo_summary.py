from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkinfer.cli import demo_summary
from sparkinfer.cli.demo_summary import Comparison, Summary, compare, summarise
from sparkinfer.cli.demo_text import lines, next_steps
from sparkinfer.cli.row_by_row import RowByRow
from sparkinfer.job.result import RunResult

RESULT = RunResult(
    rows=4,
    failed=0,
    skipped=0,
    reused=0,
    already_done=0,
    failed_before=0,
    source_rows=4,
    requests=4,
    prompt_tokens=400,
    completion_tokens=8,
    paid_prompt_tokens=400,
    paid_completion_tokens=8,
    seconds=2.0,
    table="out/demo/labels",
    table_version=3,
    source="reviews",
    source_version=None,
    writer="delta-spark",
    run_id="r",
    mlflow_run_id="m1",
    model_name="tiny",
    model_version="v1",
    config_hash="c",
)
ROWS = [
    {"id": str(i), "text": "x", "label": gold, "predicted": said}
    for i, (gold, said) in enumerate([("great", "great"), ("great", "other"), ("great", "great"), ("other", "other")])
]
COMPARISON = Comparison(rows=2, column_seconds=1.5, row_by_row_seconds=6.0, same_answers=2)


def summary() -> Summary:
    return summarise(RESULT, COMPARISON, ROWS, "sqlite:///x/mlflow.db")


def test_accuracy_stands_beside_what_always_saying_the_most_frequent_label_gets() -> None:
    found = summary()
    assert (found.accuracy, found.majority) == (0.75, 0.75)
    assert found.labels == {"great": 2, "other": 2}
    assert "does not beat that" in dict(lines(found))["accuracy"]
    assert "(better than that)" in dict(lines(replace(found, accuracy=0.9)))["accuracy"]


def test_rates_are_over_the_whole_wall_clock_and_count_input_and_output() -> None:
    told = dict(lines(summary()))
    assert told["valid rows/s"].startswith("2.0 ")
    assert told["tokens/s"].startswith("204 ")
    assert told["speed-up"].startswith("4.0x ")


def test_a_kept_summary_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    summary().save(path)
    assert demo_summary.load(path) == summary()
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_a_summary_that_is_missing_broken_or_of_another_format_is_none(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    assert demo_summary.load(path) is None
    path.write_text("{")
    assert demo_summary.load(path) is None
    replace(summary(), format=demo_summary.FORMAT + 1).save(path)
    assert demo_summary.load(path) is None


def test_answers_of_both_sides_are_compared_by_row() -> None:
    plain = RowByRow(
        rows=3, seconds=3.0, load_seconds=9.0, prompt_tokens=1, completion_tokens=1, answers=("a", "b", "c")
    )
    found = compare({"1": "a", "2": "x", "3": "c"}, 1.0, ["1", "2", "3"], plain)
    assert (found.rows, found.same_answers, found.speed_up) == (3, 2, 3.0)


def test_the_next_steps_name_the_table_and_the_store() -> None:
    commands = [command for command, _ in next_steps(summary())]
    assert any(command.endswith("sparkinfer status out/demo/labels") for command in commands)
    assert any("sqlite:///x/mlflow.db" in command for command in commands)


def test_a_next_step_can_be_typed_where_the_environment_is_not_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / ".venv" / "bin" / "sparkinfer"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program.with_name("python")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert next_steps(summary())[0][0] == ".venv/bin/sparkinfer status out/demo/labels"
    monkeypatch.setenv("PATH", str(program.parent))
    assert next_steps(summary())[0][0] == "sparkinfer status out/demo/labels"
