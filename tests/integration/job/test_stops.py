"""However a job is stopped, what is finished is committed or kept, and the same job goes on."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sparkinfer.cli.exits import ExitCode
from sparkinfer.cli.main import main
from sparkinfer.errors import DeadlineReached, InvalidConfig, JobError
from sparkinfer.job.deadline import Deadline
from sparkinfer.job.pipeline import JobTag
from sparkinfer.tracking.base import RecordingTracker, RunStatus
from tests.support.engines import eventually

ROWS = 24


@pytest.fixture
def slow(job: Any, spark: Any) -> Any:
    """A job that takes some seconds: two rows a step."""
    spark.conf.set("spark.sparkinfer.engine.max_batch_size", "2")
    job.options = "&step_ms=500"
    yield job
    spark.conf.unset("spark.sparkinfer.engine.max_batch_size")


def is_in_the_middle(job: Any) -> bool:
    """One bucket is committed, the last one was just begun."""
    return (job.folder / "labels" / "_delta_log" / f"{1:020d}.json").exists()


def when(condition: Callable[[], bool], act: Callable[[], object]) -> threading.Thread:
    """Act on another thread as soon as something is so."""

    def wait() -> None:
        eventually(condition, seconds=240)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def kept(job: Any) -> list[dict[str, Any]]:
    """Job files of the runs that left something."""
    return [json.loads(path.read_text()) for path in (job.folder / "labels" / "_sparkinfer").glob("*/job.json")]


def check_that_it_goes_on(job: Any, source: Any) -> None:
    """The stopped job is complete after one more run, and nothing that was committed is asked again."""
    committed = job.rows()
    assert 0 < len(committed) < ROWS
    assert [file["state"] for file in kept(job)] == ["released"]
    result = job.run(source, buckets=3)
    assert [row.id for row in job.rows()] == list(range(ROWS))
    assert (result.rows, result.already_done) == (ROWS - len(committed), len(committed))
    assert result.requests <= result.rows
    assert kept(job) == []


@pytest.mark.timeout(600)
def test_a_deadline_ends_a_job_in_time_and_says_what_is_left(slow: Any) -> None:
    def clock() -> float:
        return 7200.0 if is_in_the_middle(slow) else 0.0

    source = slow.frame([(i, f"text {i}") for i in range(ROWS)])
    tracker = RecordingTracker()
    with pytest.raises(DeadlineReached, match=r"deadline of 2h.*kept in .*of 3 buckets committed") as stopped:
        slow.run(source, buckets=3, deadline=Deadline("2h", clock=clock), tracker=tracker)
    assert f"of {ROWS} rows were not answered yet" in str(stopped.value)
    assert tracker.outcomes[0].status is RunStatus.KILLED
    check_that_it_goes_on(slow, source)


def test_a_deadline_while_the_source_is_compared_leaves_the_table_as_it_was(job: Any) -> None:
    looks = iter([0.0])
    deadline = Deadline("1h", clock=lambda: next(looks, 3600.0))
    with pytest.raises(DeadlineReached, match="Stopped before the first row"):
        job.run(job.frame([(1, "a")]), deadline=deadline)
    assert job.requests() == []
    assert job.run(job.frame([(1, "a")])).rows == 1


@pytest.mark.parametrize("deadline", ["0s", -5, "tomorrow"])
def test_a_deadline_that_cannot_be_is_refused_before_anything_runs(job: Any, deadline: Any) -> None:
    with pytest.raises(InvalidConfig, match="deadline must"):
        job.run(job.frame([(1, "a")]), deadline=deadline)
    assert not (job.folder / "labels").exists()


@pytest.mark.timeout(600)
def test_ctrl_c_keeps_what_is_finished(slow: Any) -> None:
    source = slow.frame([(i, f"text {i}") for i in range(ROWS)])
    when(lambda: is_in_the_middle(slow), lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        slow.run(source, buckets=3)
    check_that_it_goes_on(slow, source)


@pytest.mark.timeout(600)
def test_a_cancelled_job_group_ends_the_job_and_keeps_what_is_finished(slow: Any, spark: Any) -> None:
    """As a notebook's stop button does it: the buckets run on threads of their own and belong to the group all the same."""
    source = slow.frame([(i, f"text {i}") for i in range(ROWS)])
    ended = threading.Event()

    def cancel_until_it_ends() -> None:
        while not ended.wait(0.2):  # a group between two Spark jobs has nothing to cancel
            spark.sparkContext.cancelJobGroup("a notebook's cell")

    when(lambda: is_in_the_middle(slow), cancel_until_it_ends)
    spark.sparkContext.setJobGroup("a notebook's cell", "to be cancelled", interruptOnCancel=True)
    try:
        with pytest.raises(JobError, match=r"cancelled.*the next run of this job uses it"):
            slow.run(source, buckets=3)
    finally:
        ended.set()
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    check_that_it_goes_on(slow, source)


def test_what_a_bucket_starts_in_spark_ends_with_its_tag(spark: Any) -> None:
    tag = JobTag(spark, "one run's tag")

    def sleep(batches: Any) -> Any:
        for batch in batches:
            time.sleep(120)
            yield batch

    def work() -> list[Any]:
        return spark.range(0, 2, 1, 2).mapInArrow(sleep, "id bigint").collect()

    with tag.on_this_thread(), ThreadPoolExecutor(1) as pool:
        running = pool.submit(tag.inherited(work))
        eventually(lambda: spark.sparkContext.statusTracker().getActiveJobsIds(), seconds=60)
        began = time.monotonic()
        tag.cancel()
        with pytest.raises(Exception, match="cancelled"):
            running.result()
        assert time.monotonic() - began < 60, "it was waited for"


JOB = """
source: {source}
into: {into}
key: id
output: answer
deadline: {deadline}
udf: {{model: "fake:?log={log}&step_ms=500", prompt: "Say {{text}}"}}
spark: {{spark.sparkinfer.engine.max_batch_size: 2}}
tracking: {{enabled: false}}
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stop", ["SIGTERM", "deadline"])
def test_the_command_line_ends_with_4_and_says_what_is_left(slow: Any, capsys: Any, stop: str) -> None:
    rows = [(i, f"text {i}") for i in range(ROWS)]
    source = str(slow.folder / "source.parquet")
    slow.frame(rows).write.parquet(source)
    path = slow.folder / "job.yaml"
    deadline = "1h" if stop == "SIGTERM" else "0.5s"
    path.write_text(JOB.format(source=source, into=slow.into, log=slow.log, deadline=deadline))
    if stop == "SIGTERM":
        when(lambda: len(slow.requests()) > 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["run", str(path), "--json"]) == ExitCode.STOPPED
    said = capsys.readouterr()
    told = json.loads(said.out.splitlines()[-1])
    assert (told["stopped"], told["exit_code"]) == ("signal" if stop == "SIGTERM" else "deadline", 4)
    assert "go on" in said.err
    assert "Stopped" in said.err
    if stop == "SIGTERM":
        assert (told["rows_total"], told["buckets_total"], told["buckets_done"]) == (ROWS, 1, 0)
        assert len(kept(slow)) == 1
    assert slow.run(source).table == slow.into
    assert [row.id for row in slow.rows()] == list(range(ROWS))
