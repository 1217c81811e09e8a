"""A Spark session without Delta: delta-rs writes, the result says so, and a table name is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from deltalake import DeltaTable, write_deltalake

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from sparkinfer import llm_udf, run
from sparkinfer.errors import MissingDependency
from sparkinfer.tracking.base import NullTracker

spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
udf = llm_udf(model="fake:?log=" + sys.argv[2], prompt="Say {text}")
given = dict(source=sys.argv[1], udf=udf, key="id", output="answer", tracker=NullTracker(), buckets=1)
try:
    run(spark, into="labels", **given)
except MissingDependency as error:
    refused = str(error)
first = run(spark, into=sys.argv[3], **given)
again = run(spark, into=sys.argv[3], **given)
print(json.dumps({"refused": refused, "first": first.to_dict(), "again": again.to_dict()}))
spark.stop()
"""


def test_a_session_without_delta_reads_and_writes_through_delta_rs(tmp_path: Path) -> None:
    import pyarrow as pa

    source, log, into = (str(tmp_path / name) for name in ("source", "engine.log", "labels"))
    write_deltalake(source, pa.table({"id": [1, 2, 3], "text": ["a", "b", "a"]}))

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, source, log, into],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert "MISSING_DEPENDENCY" in told["refused"]
    assert (told["first"]["writer"], told["first"]["rows"], told["first"]["requests"]) == ("delta-rs", 3, 2)
    assert told["first"]["source_version"] == 0
    assert (told["again"]["rows"], told["again"]["already_done"]) == (0, 3)
    assert sorted(DeltaTable(into).to_pyarrow_table()["id"].to_pylist()) == [1, 2, 3]
