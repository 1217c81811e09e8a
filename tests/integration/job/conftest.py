"""The small job on the counting engine, in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.small_job import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


@pytest.fixture
def no_leftovers(tmp_path: Path) -> Callable[[], bool]:
    """Whether no staging folder is left beside the table."""
    return lambda: not list((tmp_path / "labels" / "_sparkinfer").glob("*"))
