"""Drivers that tests start in processes of their own: their environment, and a Spark that is cheap to start."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.spark_session import NO_CODE_GENERATION, SHORT_LIVED_JVM

ROOT = Path(__file__).parents[2]

#: Such a Spark lives for a minute and sees few rows: most of its processor time would go into compiling.
THRIFTY = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
    "spark.executor.extraJavaOptions": SHORT_LIVED_JVM,
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    **NO_CODE_GENERATION,
}


def driver_environment() -> dict[str, str]:
    """This process's, without what would make the driver look like one of Spark's workers; imports from this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_LOCAL_DIRS")}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return kept
