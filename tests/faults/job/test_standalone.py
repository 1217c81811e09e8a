"""A standalone cluster with workers on two loopback addresses, which count as two hosts: what Spark does only there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kills import tables
from tests.kills.application import Application
from tests.kills.cluster import Standalone
from tests.kills.models import FAKE, Model, fake_model
from tests.kills.trial import begin
from tests.kills.victims import working_engines
from tests.support.drivers import THRIFTY, driver_environment
from tests.support.engines import eventually
from tests.support.leftovers import engines, leftovers

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """The master and its two workers."""
    found = Standalone(tmp_path_factory.mktemp("cluster"))
    yield found
    found.stop()


@pytest.fixture
def application(cluster: Standalone, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Application]:
    """A driver with the settings that the test is parametrised with."""
    settings = THRIFTY | {"spark.executor.cores": "1", "spark.sparkinfer.engine.max_batch_size": "2"} | request.param
    found = Application(cluster.url, settings, tmp_path / "application")
    yield found
    assert found.stop() == []
    assert leftovers() == []


def run(application: Application, source: str, into: Path, model: Model) -> int:
    """Run a job to its end; requests that it counts itself."""
    begin(application, source, str(into), model)
    outcome = application.outcome()
    assert outcome["event"] == "done", outcome
    return int(outcome["result"]["requests"])


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "2s",
    "spark.sparkinfer.engine.stall_timeout_s": "100000",
}


@pytest.mark.parametrize("application", [SPECULATION], indirect=True)
def test_a_speculative_copy_on_the_other_host_writes_each_row_once(application: Application, tmp_path: Path) -> None:
    sources, model = tables.Sources.write(tmp_path, FAKE), fake_model(tmp_path, step_ms=300)
    begin(application, sources.first, str(tmp_path / "table"), model)
    eventually(lambda: sum(rows > 0 for rows in working_engines(model).values()) == 2, seconds=240)
    hanging = next(engine for engine, rows in working_engines(model).items() if rows)
    os.kill(hanging.pid, signal.SIGSTOP)  # nobody but a copy on the other host can end its tasks
    try:
        outcome = application.outcome()
    finally:
        os.kill(hanging.pid, signal.SIGCONT)
    assert outcome["event"] == "done", outcome
    rows = tables.content(str(tmp_path / "table"))
    assert sorted(row[0] for row in rows.elements()) == list(range(FAKE.rows))
    answered = {event["prompt"] for event in model.requests()}
    assert len(answered) == FAKE.distinct
    assert outcome["result"]["requests"] == FAKE.distinct, "the loser's answers are not counted"


DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "5s",
}


@pytest.mark.parametrize("application", [DYNAMIC], indirect=True)
def test_engines_leave_and_come_with_the_executors_of_dynamic_allocation(
    application: Application, tmp_path: Path
) -> None:
    sources, model = tables.Sources.write(tmp_path, FAKE), fake_model(tmp_path, step_ms=20)
    assert run(application, sources.first, tmp_path / "table", model) == FAKE.distinct
    eventually(lambda: not engines(), seconds=120)
    assert run(application, sources.second, tmp_path / "table", model) == FAKE.new_texts
    assert len(model.requests()) == FAKE.distinct + FAKE.new_texts
    rows = tables.content(str(tmp_path / "table"))
    assert sorted(row[0] for row in rows.elements()) == list(range(len(FAKE.second())))


#: A stage with a resource profile of its own, in the tasks that ask the engine.
PROFILE = """
import json, sys
from pyspark import TaskContext
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import functions as F
from sparkinfer import llm_udf, session
from tests.support.drivers import THRIFTY

def through(batches):
    assert TaskContext.get().cpus() == 1
    yield from batches

spark = session(master=sys.argv[1], config=THRIFTY | {"spark.executor.cores": "1"})
profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(1)).build
texts = spark.range(0, 40, 1, 4).select(F.concat(F.lit("text "), "id").alias("t"))
labelled = texts.select(llm_udf(model=sys.argv[2])("t").alias("r"))
rows = labelled.mapInArrow(through, "r string", profile=profile).collect()
print("RESULT " + json.dumps({"rows": len({row.r for row in rows})}))
spark.stop()
"""


def test_a_stage_with_a_resource_profile_is_answered(cluster: Standalone, tmp_path: Path) -> None:
    model = fake_model(tmp_path, step_ms=0)
    done = subprocess.run(
        [sys.executable, "-c", PROFILE, cluster.url, model.uri],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=tmp_path,
        env=driver_environment(),
        check=False,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")] or [done.stderr[-3000:]]
    assert json.loads(line.removeprefix("RESULT ")) == {"rows": 40}
    assert len(model.requests()) == 40
