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
    shutil.rmtree(folder)  # the executor's memory of it
    running.join()
    assert raised

    before = requests(job.log)
    late = sum(event["time"] > killed - BOUND_S for event in before)
    spark.conf.set("spark.sparkinfer.engine.max_batch_size", "256")
    result = job.run(source, buckets=1)
    after = Counter(event["prompt"] for event in requests(job.log))
    again = sum(after.values()) - ROWS
    print(f"{len(before)} of {ROWS} rows were asked at the kill, {late} of them in the last {BOUND_S:.0f} s; {again} paid again")
    assert len(after) == ROWS
    assert again <= late + BATCH
    assert late < len(before), "the bound would prove nothing"
    assert (result.rows, result.failed, result.requests) == (ROWS, 0, ROWS - len(before) + again)
    answers = {row.id: row for row in job.rows()}
    assert sorted(answers) == list(range(ROWS))
    assert all(row.answer.startswith("answer-") and row.model_name and row.inferred_at for row in answers.values())
    undisturbed = {"answer-" + hashlib.sha256(prompt.encode()).hexdigest()[:8] for prompt in after}  # as the fake engine has it
    assert {row.answer for row in answers.values()} == undisturbed
