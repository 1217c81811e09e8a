"""The same UDF over Spark Connect, in a process of its own: one process cannot hold a classic and a Connect session."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
from pyspark.sql import SparkSession, functions as F
from sparkinfer import llm_udf

spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.sparkinfer.model", sys.argv[1])
frame = spark.createDataFrame([(i, f"text {i % 5}" if i else None) for i in range(20)], "id int, text string")
plain = {row.id: row.r for row in frame.withColumn("r", llm_udf(F.col("text"))).collect()}
label = llm_udf(prompt="{text}", fail_on_error=False)
structs = {row.id: row.r for row in frame.withColumn("r", label(text="text")).filter("r.errorCode is null").collect()}
spark.udf.register("label", llm_udf())
frame.createOrReplaceTempView("t")
in_sql = {row.id: row.r for row in spark.sql("SELECT id, label(text) AS r FROM t").collect()}
print("RESULT " + json.dumps({
    "is_connect": "connect" in type(spark).__module__,
    "plain": plain, "in_sql": in_sql,
    "structs": {i: [s.result, s.finish_reason, s.input_hash] for i, s in structs.items()},
}))
spark.stop()
"""


@pytest.mark.timeout(900)
def test_all_three_forms_work_over_connect(model, tmp_path):
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, model.uri],
        capture_output=True,
        text=True,
        timeout=800,
        cwd=tmp_path,
        env=environment,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-4000:]
    found = json.loads(lines[0].removeprefix("RESULT "))
    assert found["is_connect"]
    assert found["plain"] == found["in_sql"]
    assert found["plain"]["0"] is None
    assert found["structs"]["0"][:2] == [None, "skipped"]
    assert {i: s[0] for i, s in found["structs"].items()} == found["plain"]
    assert model.requests <= 2 * 5, "each distinct input once for each of the two prompts"
