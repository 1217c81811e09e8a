"""Jobs in processes of their own: killed with everything they started, and two equal ones at once."""

from __future__ import annotations

import json
import os
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

ROWS = 40
PATIENCE_S = 280


def start(arguments: dict[str, str]) -> subprocess.Popen[str]:
    driver = str(Path(__file__).with_name("driver.py"))
    return subprocess.Popen(
        [sys.executable, driver, json.dumps(arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def arguments(spark: Any, tmp_path: Path) -> dict[str, str]:
    source = str(tmp_path / "source.parquet")
    spark.createDataFrame([(i, f"text {i}") for i in range(ROWS)], "id bigint, text string").write.parquet(source)
    return {
        "source": source,
        "into": str(tmp_path / "labels"),
        "model": f"fake:?log={tmp_path / 'engine.log'}&step_ms=1500",
    }


def requests(tmp_path: Path) -> int:
    log = tmp_path / "engine.log"
    return sum('"request"' in line for line in log.read_text().splitlines()) if log.exists() else 0


@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_job_killed_at_half_goes_on_where_it_was(spark: Any, arguments: dict[str, str], tmp_path: Path) -> None:
    child = start(arguments)
    try:
        third_commit = tmp_path / "labels" / "_delta_log" / f"{3:020d}.json"
        until = time.monotonic() + PATIENCE_S
        while not third_commit.exists():
            assert child.poll() is None, "the job ended before it was killed"
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    written = spark.read.format("delta").load(arguments["into"]).count()
    assert 0 < written < ROWS

    result = run(
        spark,
        source=arguments["source"],
        into=arguments["into"],
        udf=llm_udf(model=arguments["model"], prompt="Say {text}"),
        key="id",
        output="answer",
        tracker=NullTracker(),
    )

    rows = spark.read.format("delta").load(arguments["into"]).orderBy("id").collect()
    assert [row.id for row in rows] == list(range(ROWS))
    assert (result.rows, result.already_done) == (ROWS - written, written)
    two_largest = sum(sorted(Counter(row.bucket for row in rows).values())[-2:])
    assert requests(tmp_path) <= ROWS + two_largest, "only what was open at the kill may be asked again"
    assert not list((tmp_path / "labels" / "_sparkinfer").glob("*"))


@pytest.mark.timeout(2 * PATIENCE_S)
def test_two_equal_jobs_in_two_processes_write_each_row_once(
    spark: Any, arguments: dict[str, str], tmp_path: Path
) -> None:
    children = [start(arguments), start(arguments)]
    try:
        results = [json.loads(child.communicate(timeout=PATIENCE_S)[0].splitlines()[-1]) for child in children]
    finally:
        for child in children:
            child.kill()
    ids = [row.id for row in spark.read.format("delta").load(arguments["into"]).orderBy("id").collect()]
    assert ids == list(range(ROWS))
    assert sum(result["rows"] for result in results) == ROWS
    assert ROWS <= requests(tmp_path) <= 2 * ROWS
