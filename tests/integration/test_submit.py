from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkinfer.udf.session import delta_package

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_a_job_file_runs_under_spark_submit(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "text": ["a", "b"]}), tmp_path / "in.parquet")
    job = tmp_path / "job.yaml"
    job.write_text(
        f"source: {tmp_path}/in.parquet\ninto: {tmp_path}/labels\nkey: id\noutput: answer\n"
        "udf: {model: fake, prompt: 'Say {text}'}\ntracking: {enabled: false}\n"
    )
    package = delta_package()
    assert package is not None
    submit = Path(sys.executable).with_name("spark-submit")
    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.ui.enabled": "false",
    }
    command = [str(submit), "--master", "local[2]", "--packages", package]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += [str(ROOT / "examples" / "submit_job.py"), str(job), "--json"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=550, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["rows"], result["failed"], result["writer"]) == (2, 0, "delta-spark")
