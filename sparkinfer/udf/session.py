"""A local Spark session with the settings that matter here: Delta, results that come back early, few small tasks."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from sparkinfer.errors import InvalidConfig, JavaNotFound, MissingDependency

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)

MINIMUM_JAVA = 17

#: Settings that a running session takes too. A worker keeps its output in a buffer of 64 KB, so that a reader of five rows
#: would pay for hundreds; through a small one each batch of answers is seen at once. A second worker above it (a filter on the
#: answer makes one) gets its first row when a whole batch is there, so batches are smaller than a cautious window.
RUNTIME_SETTINGS: dict[str, str] = {
    "spark.sql.execution.pandas.udf.buffer.size": "1024",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32",
    "spark.sql.shuffle.partitions": "8",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}

#: What a running session has where nobody set them.
_SPARKS_OWN = (None, "65536", "10000", "false")

#: Settings that only a new session takes.
START_SETTINGS: dict[str, str] = {
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.session.timeZone": "UTC",  # a date in a prompt or a key is the same on every machine
    "spark.ui.showConsoleProgress": "false",
}

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def session(
    app: str = "sparkinfer", *, master: str | None = None, config: Mapping[str, object] | None = None
) -> SparkSession:
    """A Spark session that sparkinfer runs well on; the running one where there is one.

    A new one is local, with a slot per core and tasks that are tried again, and with Delta where delta-spark is installed.
    A running one (a notebook's, a cluster's) is returned with the settings that can still be changed, where nobody set them.

    Args:
        app: name of the application.
        master: Spark master; None: ``local[cores,4]``.
        config: more settings, over ours.

    Raises:
        JavaNotFound: no Java, or one too old.
        MissingDependency: pyspark is not installed.
        InvalidConfig: GPU amounts in local mode, where Spark would wait for ever.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingDependency(
            "pyspark is not installed; install it with: pip install 'sparkinfer[spark]'."
        ) from error
    given = {name: _text(value) for name, value in (config or {}).items()}
    running = running_session()
    if running is not None:
        return _adapted(running, given)
    master = master or given.pop("spark.master", None) or f"local[{os.cpu_count() or 1},4]"
    _refuse_local_gpus(master, given)
    if master.startswith("local"):
        require_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run whatever python3 is on the PATH
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in (RUNTIME_SETTINGS | START_SETTINGS | given | _delta_settings(given)).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def running_session() -> SparkSession | None:
    """The session that this process runs already, classic or Connect."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def delta_package() -> str | None:
    """Maven coordinate of the Delta jar for the installed pyspark and delta-spark; None without delta-spark."""
    try:
        delta, spark = metadata.version("delta-spark"), metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return None
    spark_line = ".".join(spark.split(".")[:2])
    if spark_line == "3.5":
        return f"io.delta:delta-spark_2.12:{delta}"
    if spark_line == "4.0" and delta.startswith("4.0."):
        return f"io.delta:delta-spark_2.13:{delta}"
    return f"io.delta:delta-spark_{spark_line}_2.13:{delta}"


def require_java() -> int:
    """The major version of the Java that Spark will find.

    Raises:
        JavaNotFound: none, or older than Spark 4 needs.
    """
    hint = f"Install Java {MINIMUM_JAVA} (Debian: apt install openjdk-{MINIMUM_JAVA}-jre-headless) or set JAVA_HOME to one."
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        raise JavaNotFound(f"Spark needs Java {MINIMUM_JAVA}, and {where}. {hint}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is None:
        raise JavaNotFound(f"{java} -version gave no version number. {hint}")
    if int(found[1]) < MINIMUM_JAVA:
        raise JavaNotFound(f"Spark needs Java {MINIMUM_JAVA}, and {java} is Java {found[1]}. {hint}")
    return int(found[1])


def _adapted(running: SparkSession, given: Mapping[str, str]) -> SparkSession:
    for name, value in RUNTIME_SETTINGS.items():
        if (
            name not in given
            and name.startswith("spark.sql.execution.")
            and running.conf.get(name, None) in _SPARKS_OWN
        ):
            running.conf.set(name, value)
    fixed = []
    for name, value in given.items():
        # Spark calls only those modifiable that it knows itself.
        if name.startswith("spark.sparkinfer.") or running.conf.isModifiable(name):
            running.conf.set(name, value)
        elif running.conf.get(name, None) != value:
            fixed.append(name)
    if fixed:
        _LOG.warning("A session runs already, and %s cannot be changed in it; stop it first.", ", ".join(sorted(fixed)))
    return running


def _delta_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Delta beside whatever extensions and packages were asked for; nothing without delta-spark.

    Where ``spark.jars`` brings Delta (no way to Maven Central from here), nothing is fetched.
    """
    package = delta_package()
    if package is None:
        return {}
    ours = {"spark.sql.extensions": DELTA_EXTENSION}
    if "delta-spark_" not in given.get("spark.jars", ""):
        ours["spark.jars.packages"] = package
    lists = {name: ",".join(filter(None, [value, given.get(name)])) for name, value in ours.items()}
    return {"spark.sql.catalog.spark_catalog": given.get("spark.sql.catalog.spark_catalog", DELTA_CATALOG), **lists}


def _refuse_local_gpus(master: str, given: Mapping[str, str]) -> None:
    amounts = [name for name in given if re.fullmatch(r"spark\.(task|executor|driver)\.resource\.gpu\.amount", name)]
    if amounts and re.match(r"local(\[|$)", master):
        raise InvalidConfig(
            f"{amounts[0]} is set, but Spark schedules no GPUs in local mode and would wait for ever; leave it out: the engine "
            "finds the device itself (engine setting device)."
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
