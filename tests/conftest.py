"""Markers by folder, a quiet and offline environment, and the one Spark session of the process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.leftovers import leftovers, mark_this_run

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported, as the engine process has it
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ["SPARKINFER_CONFIG"] = (
    os.devnull
)  # settings of the folder that the tests are started in must not decide; a test may name its own
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run this Python, not the one on the PATH

mark_this_run()

# A shell starts what runs in the background with Ctrl-C ignored, and children inherit that: the tests of stops need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTS = Path(__file__).parent

# Times depend on the machine, so no deadline; continuous integration finds the same examples every time.
settings.register_profile("local", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")

#: Folder under tests/ -> its markers. What needs more than Python alone is found by its folder; by hand only slow cases of
#: tests/cases (an idle minute, a cluster of executors that are killed) are marked: faults.
MARKERS = {
    "property": ("property",),
    "oracle": ("oracle",),
    "spark": ("spark",),
    "integration": ("spark", "integration"),
    "cases": ("spark", "integration"),
    "faults": ("faults",),
    "gpu": ("gpu",),
    "perf": ("perf",),
}

#: Sessions of their own, or many runs of a job: `make test-slow`.
SLOW = (
    "integration/job/test_change_feed.py",
    "integration/job/test_without_delta.py",
    "spark/udf/test_connect.py",
    "spark/udf/test_pandas_expression.py",
    "spark/udf/test_session_settings.py",
    "cases/test_evaluation.py::test_case_04",
    "cases/test_evaluation.py::test_case_05",
    "integration/job/test_cache.py::test_answers_that_cannot_be_added",
    "integration/job/test_durable.py::test_torn_and_foreign_lines",
    "integration/job/test_run.py::test_a_merge_reads_the_buckets",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the markers of its folder."""
    for item in items:
        if any(f"tests/{name}" in item.nodeid for name in SLOW):
            item.add_marker("slow")
        parts = item.path.relative_to(TESTS).parts if item.path.is_relative_to(TESTS) else ()
        for marker in MARKERS.get(parts[0] if parts else "", ()):
            item.add_marker(marker)


@pytest.fixture(autouse=True)
def no_orphans(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves an engine process whose executor is gone, or its socket or folder."""
    yield
    parts = request.path.relative_to(TESTS).parts if request.path.is_relative_to(TESTS) else ()
    if {"spark", "integration", "cases", "faults", "host"} & set(parts):
        assert leftovers() == []


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of this process: local, two slots, Delta. Tests never stop it."""
    from tests.support.spark_session import local_session

    session = local_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
    assert leftovers() == []
