"""What the field's failures are tried on: the counting engine, a small job, and the driver in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.counting import CountingModel
from tests.support.small_job import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


@pytest.fixture
def model(tmp_path: Path) -> CountingModel:
    return CountingModel(tmp_path / "engine.log")


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[Callable[..., None]]:
    """Sets session settings (``settings({"spark...": "1"})``) and puts the old ones back afterwards."""
    before: dict[str, Any] = {}

    def change(values: dict[str, object]) -> None:
        for name, value in values.items():
            before.setdefault(name, spark.conf.get(name, None))
            spark.conf.set(name, str(value))

    yield change
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@pytest.fixture
def own_process(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs a driver program in a process of its own, in a folder of its own, and gives what it printed behind RESULT."""
    root = Path(__file__).parents[2]

    def run(program: str, *arguments: str, timeout: float = 500, **environment: str) -> dict[str, Any]:
        folder = tmp_path / "driver"
        folder.mkdir(exist_ok=True)
        path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, **environment},
            check=False,
        )
        (folder / "stderr").write_text(done.stderr)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert lines, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
        return found

    return run
