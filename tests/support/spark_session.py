"""The Spark session that tests share: the one that users get, with everything that makes small tests slow turned down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparkinfer.udf.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Half of a small test's JVM time goes into compiling code that runs once. (The code cache has its usual size all the same: once it
#: is full, nothing is compiled any more.) What is tested by the command line, the documents, the notebook and the fault tests
#: has Spark's own settings.
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
NO_CODE_GENERATION = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def local_session(folder: Path) -> SparkSession:
    """A local session with two slots and task retries; its warehouse and Derby files lie under ``folder``."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder / 'derby'} {SHORT_LIVED_JVM}",
        "spark.driver.memory": "1g",
        **NO_CODE_GENERATION,
        "spark.sparkinfer.engine.retry_base_s": "0.01",
    }
    spark = session("sparkinfer-tests", master="local[2,4]", config=settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark
