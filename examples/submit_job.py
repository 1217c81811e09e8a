"""A job file under spark-submit; Airflow and Databricks jobs call it in the same way.

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 examples/submit_job.py examples/job.yaml

The session is spark-submit's own; sparkinfer is installed on driver and executors. The exit code is that of
``sparkinfer run``: 0 done, 1 failed, 2 wrong use, 3 done with failed rows, 4 stopped early.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from sparkinfer.cli.main import main

if __name__ == "__main__":
    spark = SparkSession.builder.appName("sparkinfer job").getOrCreate()
    code = main(["run", *sys.argv[1:]])
    spark.stop()
    sys.exit(code)
