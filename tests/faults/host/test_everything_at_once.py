"""Driver, executors and engines killed together in the middle of a bucket: only the last seconds are paid for again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sparkinfer import llm_udf, run
from sparkinfer.tracking.base import NullTracker
from tests.support.drivers import driver_environment
from tests.support.engines import events, eventually
from tests.support.executors import descendants, kill
from tests.support.leftovers import engines

ROWS = 240
BATCH = 2
#: A step of one engine; two executors take twice as long, so that both finish as many rows a second.
STEP_MS = 150
#: Seconds of work that may be lost beside what is in flight.
BOUND_S = 5.0

DRIVER = """
import sys
from sparkinfer import llm_udf, run, session
from sparkinfer.tracking.base import NullTracker
from tests.support.drivers import THRIFTY
master, source, into, model, local_dir = sys.argv[1:]
spark = session(master=master, config=THRIFTY | {
    "spark.local.dir": local_dir, "spark.sparkinfer.engine.max_batch_size": "BATCH"
})
run(spark, source=source, into=into, udf=llm_udf(model=model, prompt="Say {text}"), key="id", output="answer", buckets=1,
    tracker=NullTracker())
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("master", "seed"),
    [("local[2,4]", 1), ("local[2,4]", 3), ("local-cluster[2,1,1024]", 5)],
    ids=["local-1", "local-3", "cluster-5"],
)
def test_only_the_last_seconds_are_paid_again(spark: Any, tmp_path: Path, master: str, seed: int) -> None:
    source, into, log = str(tmp_path / "source"), str(tmp_path / "labels"), tmp_path / "engine.log"
    model = f"fake:?log={log}&step_ms={STEP_MS * (2 if 'cluster' in master else 1)}"
    spark.range(ROWS).selectExpr("id", "concat('text ', id) AS text").write.parquet(source)
    (tmp_path / "local").mkdir()
    program = DRIVER.replace("BATCH", str(BATCH))
    command = [sys.executable, "-c", program, master, source, into, model, str(tmp_path / "local")]
    with (tmp_path / "driver.log").open("w") as output:
        driver = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            env=driver_environment(),
            start_new_session=True,
        )
    moment = random.Random(seed).randint(ROWS // 3, ROWS * 3 // 4)
    try:
        eventually(lambda: len(events(log, "request")) >= moment or driver.poll() is not None, seconds=500)
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
    finally:
        killed = _kill_everything(driver, {int(event["pid"]) for event in events(log, "load")})
    before = events(log, "request")
    late = sum(float(event["time"]) > killed - BOUND_S for event in before)
    in_flight = BATCH * len({event["pid"] for event in before})

    udf = llm_udf(model=model, prompt="Say {text}")
    common: dict[str, Any] = {"source": source, "udf": udf, "key": "id", "output": "answer", "tracker": NullTracker()}
    result = run(spark, into=into, buckets=1, **common)

    asked = Counter(str(event["prompt"]) for event in events(log, "request"))
    again = sum(asked.values()) - ROWS
    print(
        f"\n{master} seed {seed}: killed at {len(before)} of {ROWS} requests, {late} of them in the last {BOUND_S:.0f} s, "
        f"{in_flight} in flight; {again} paid again"
    )
    assert len(asked) == ROWS
    assert again <= late + in_flight < len(before)
    assert (result.rows, result.failed) == (ROWS, 0)
    rows = spark.read.format("delta").load(into).orderBy("id").collect()
    assert [row.id for row in rows] == list(range(ROWS))
    run(spark, into=str(tmp_path / "undisturbed"), buckets=1, **common)
    undisturbed = spark.read.format("delta").load(str(tmp_path / "undisturbed")).orderBy("id").collect()
    assert [row.answer for row in rows] == [row.answer for row in undisturbed]
    assert not list((tmp_path / "labels" / "_sparkinfer").glob("*"))


def _kill_everything(driver: subprocess.Popen[bytes], engine_pids: set[int]) -> float:
    """SIGKILL the driver, its JVM, executors, workers and engines; engines are stopped first, so that none gets on meanwhile."""
    living = [pid for pid in engine_pids if pid in {engine.pid for engine in engines()}]
    for pid in living:
        os.kill(pid, signal.SIGSTOP)
    moment = time.time()
    for pid in [*descendants(driver.pid), driver.pid, *living]:
        kill(pid)
    driver.wait()
    return moment
