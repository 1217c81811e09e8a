"""``session()`` in a process of its own: a new session has what matters, a running one is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sparkinfer import session

SCRIPT = """
import json
import sparkinfer
spark = sparkinfer.session("demo", config={"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 3})
spark.sparkContext.setLogLevel("ERROR")
spark.range(3).write.format("delta").save("table")
rows = spark.sql("select string(id) as text from range(10)")
print("RESULT " + json.dumps({
    "app": spark.sparkContext.appName, "master": spark.sparkContext.master,
    "buffer": spark.conf.get("spark.sql.execution.pandas.udf.buffer.size"),
    "shuffle": spark.conf.get("spark.sql.shuffle.partitions"),
    "zone": spark.conf.get("spark.sql.session.timeZone"),
    "delta": spark.read.format("delta").load("table").count(),
    "same": sparkinfer.session() is spark,
    "answers": [r.a for r in rows.select(sparkinfer.llm_udf("text", model="fake:?answer=yes").alias("a")).collect()],
}))
spark.stop()
"""


@pytest.mark.timeout(600)
def test_a_new_session_is_local_writes_delta_and_answers(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=500, cwd=tmp_path, env=environment
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-4000:]
    found = json.loads(lines[0].removeprefix("RESULT "))
    assert found["app"] == "demo"
    assert found["master"] == f"local[{os.cpu_count()},4]"
    assert (found["buffer"], found["shuffle"], found["zone"], found["delta"]) == ("1024", "3", "UTC", 3)
    assert found["same"]
    assert found["answers"] == ["yes"] * 10


def test_a_running_session_is_returned_with_what_can_still_be_set(spark):
    found = session(config={"spark.sparkinfer.engine.threads": 1, "spark.master": "local[7]"})
    try:
        assert found is spark
        assert spark.conf.get("spark.sparkinfer.engine.threads") == "1"
        assert spark.sparkContext.master != "local[7]"
    finally:
        spark.conf.unset("spark.sparkinfer.engine.threads")
