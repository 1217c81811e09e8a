"""The Spark session that tests share."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

DELTA_JARS = "io.delta:delta-spark_4.2_2.13:4.4.0"


def local_session(folder: Path) -> SparkSession:
    """A local session with two slots (and task retries), Delta, and everything that makes small tests slow turned down."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder / 'derby'}",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.jars.packages": DELTA_JARS,
        "spark.sql.execution.pandas.udf.buffer.size": "1024",
        "spark.driver.memory": "1g",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("sparkinfer-tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
