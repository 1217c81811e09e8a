"""What the engines had finished is not paid for again when driver, engine and executor lose everything at once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import eventually

ROWS = 160
BATCH = 2
#: Seconds of work that may be lost, as promised.
BOUND_S = 5.0


@pytest.fixture
def small_batches(spark: Any) -> Any:
    """Engines that run two rows a step."""
    spark.conf.set("spark.sparkinfer.engine.max_batch_size", str(BATCH))
    yield
    spark.conf.unset("spark.sparkinfer.engine.max_batch_size")


def requests(log: Path) -> list[dict[str, Any]]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == "request"]


def engine_folder(pid: int) -> Path:
    """Where the engine process keeps its memo."""
    return Path(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[3].decode())


def lost(folder: Path) -> bool:
    """The executor's memory is gone; until the last task has ended, another engine may write to it."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("small_batches")
def test_only_the_last_seconds_are_paid_again_after_everything_died(job: Any, spark: Any) -> None:
    job.options = "&step_ms=150"
    source = job.frame([(i, f"text {i}") for i in range(ROWS)])
    raised: list[BaseException] = []

    def work() -> None:
        try:
            job.run(source, buckets=1)
        except BaseException as error:
            raised.append(error)

    running = threading.Thread(target=work)
    running.start()
    eventually(lambda: len(requests(job.log)) >= ROWS * 2 // 3, seconds=600)
    (pid,) = {event["pid"] for event in requests(job.log)}
    folder = engine_folder(pid)
    os.kill(pid, signal.SIGSTOP)  # it must not finish anything while the driver's half is ended
    killed = time.time()
    spark.sparkContext.cancelAllJobs()
    os.kill(pid, signal.SIGKILL)
    running.join()
    eventually(lambda: lost(folder))
    assert raised

    before = requests(job.log)
    late = sum(event["time"] > killed - BOUND_S for event in before)
    spark.conf.set("spark.sparkinfer.engine.max_batch_size", "256")
    result = job.run(source, buckets=1)
    after = Counter(event["prompt"] for event in requests(job.log))
    again = sum(after.values()) - ROWS
    print(
        f"{len(before)} of {ROWS} rows were asked at the kill, {late} of them in the last {BOUND_S:.0f} s; {again} paid again"
    )
    assert len(after) == ROWS
    assert again <= late + BATCH
    assert late < len(before), "the bound would prove nothing"
    assert (result.rows, result.failed, result.requests) == (ROWS, 0, ROWS - len(before) + again)
    answers = {row.id: row for row in job.rows()}
    assert sorted(answers) == list(range(ROWS))
    assert all(row.answer.startswith("answer-") and row.model_name and row.inferred_at for row in answers.values())
    undisturbed = {
        "answer-" + hashlib.sha256(prompt.encode()).hexdigest()[:8] for prompt in after
    }  # as the fake engine has it
    assert {row.answer for row in answers.values()} == undisturbed


def test_torn_and_foreign_lines_of_segments_are_left_out(job: Any, spark: Any) -> None:
    """A dead run's folder as a killed machine leaves it."""
    source = job.frame([(1, "a"), (2, "b"), (3, "c")])
    first = job.run(source, into=str(job.folder / "other"), buckets=1)
    rows = job.rows(str(job.folder / "other"))
    job.run(job.frame([(9, "another")]), buckets=1)  # makes the table
    dead = job.folder / "labels" / "_sparkinfer" / "dead"
    segments = dead / "segments" / "bucket=0"
    segments.mkdir(parents=True)
    (dead / "job.json").write_text(json.dumps({"layout": 1, "state": "released", "config_hash": first.config_hash}))
    lines = [_line(row, first.config_hash) for row in rows]
    lines[1] = _line(rows[1], "another configuration")
    (segments / "engine-00000.json").write_text("\n".join(lines)[:-4])
    asked = len(job.requests())
    result = job.run(source, buckets=1, udf=job.udf())
    assert (result.rows, result.requests) == (3, 2)
    assert len(job.requests()) - asked <= 2  # the engine still has them in its memo
    assert [row.answer for row in job.rows()[:3]] == [row.answer for row in rows]
    assert job.rows()[0].inferred_at == rows[0].inferred_at


def _line(row: Any, config_hash: str) -> str:
    names = ("input_hash", "finish_reason", "prompt_tokens", "completion_tokens", "attempts", "engine", "model_name")
    values = {name: row[name] for name in names}
    return json.dumps(
        {
            **values,
            "result": row.answer,
            "warnings": [],
            "details": {},
            "inferred_at": row.inferred_at.timestamp(),
            "config_hash": config_hash,
            "whole": True,
        }
    )
