"""The engine process under a real Spark: one load whatever Spark does, and gone when Spark is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.drivers import driver_environment
from tests.support.engines import events, eventually

#: A driver that labels rows, says so, ends Spark in the way it is told, and then stays alive itself.
DRIVER = """
import json, os, signal, subprocess, sys
from pyspark.sql import functions as F
from sparkinfer import llm_udf, session
from tests.support.drivers import THRIFTY
log, local_dir, way = sys.argv[1:]
spark = session(master="local[2]", config=THRIFTY | {"spark.local.dir": local_dir})
label = llm_udf(model="fake:?log=" + log, prompt="Say {text}")
texts = spark.range(400).select(F.concat(F.lit("text "), (F.col("id") % 200).cast("string")).alias("text")).repartition(8)
labelled = texts.withColumn("label", label(F.col("text")))
counts = [
    labelled.filter(F.col("label").startswith("answer")).count(),
    len(labelled.orderBy("label").collect()),
    labelled.select("label", label(F.col("text")).alias("again")).filter("label = again").count(),
]
print(json.dumps(counts), flush=True)
if way == "stop":
    spark.stop()
else:
    children = subprocess.run(["pgrep", "-P", str(os.getpid()), "java"], capture_output=True, text=True, check=True)
    for pid in children.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
print("ended", flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_one_load_answers_everything_and_nothing_outlives_spark(way: str, tmp_path: Path) -> None:
    log, local_dir, script = tmp_path / "fake.jsonl", tmp_path / "local", tmp_path / "driver.py"
    local_dir.mkdir()
    script.write_text(DRIVER)
    driver = subprocess.Popen(
        [sys.executable, str(script), str(log), str(local_dir), way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=driver_environment(),
    )
    assert driver.stdin is not None
    assert driver.stdout is not None
    try:
        assert json.loads(driver.stdout.readline()) == [400, 400, 400]
        (load,) = events(log, "load")
        assert len(events(log, "request")) == 200
        assert driver.stdout.readline().strip() == "ended"
        eventually(lambda: not Path(f"/proc/{load['pid']}").exists(), seconds=10)
        assert not list(local_dir.glob("blockmgr-*/sparkinfer"))
    finally:
        driver.stdin.close()
        driver.wait()
