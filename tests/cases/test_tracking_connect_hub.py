"""Field failures 22 to 25: MLflow from executors, sqlite shared by processes, Spark Connect's limits, races for one download."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest
from pyspark.cloudpickle import dumps

import sparkinfer
from sparkinfer import llm_udf
from sparkinfer.errors import InvalidConfig, InvalidModelUri
from sparkinfer.model.lock import STALE_AFTER_S
from sparkinfer.tracking import store
from sparkinfer.tracking.mlflow import MlflowTracker
from tests.support.engines import eventually
from tests.support.executors import is_alive
from tests.support.hub_server import COMMIT, HubServer
from tests.support.model_folders import write_model

PACKAGE = Path(sparkinfer.__file__).parent

#: Executors whose every MLflow or hub call would hang on a dead address, with another layout than the driver's: no home, and a
#: copy of the package in another place.
FAR = """
import json, os, sys
from pathlib import Path
from sparkinfer import llm_udf, run, session

model, into, copy, store = sys.argv[1:]
dead = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "HF_ENDPOINT": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9",
        "HOME": "/nonexistent", "PYTHONPATH": copy}
spark = session(master="local-cluster[2,1,1024]", config={
    "spark.ui.enabled": "false", "spark.executor.memory": "1g", **{f"spark.executorEnv.{k}": v for k, v in dead.items()}})
frame = spark.createDataFrame([(i, f"text {i}") for i in range(12)], "id int, text string").repartition(4)
result = run(spark, source=frame, into=into, udf=llm_udf(model=model), key="id", output="answer", tracking_uri=store)
log = model.removeprefix("fake:?log=")
pids = [json.loads(line)["pid"] for line in open(log) if '"load"' in line]
paths = [open(f"/proc/{pid}/environ", "rb").read().split(b"PYTHONPATH=")[1].split(b"\\0")[0].decode() for pid in pids]
homes = [os.readlink(f"/proc/{pid}/cwd") for pid in pids]
spark.stop()
print("RESULT " + json.dumps({"rows": result.rows, "run": result.mlflow_run_id, "paths": paths, "cwds": homes}))
"""


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_case_22_executors_need_neither_mlflow_nor_a_network_nor_a_home(model, tmp_path, own_process):
    copy = tmp_path / "elsewhere"
    shutil.copytree(PACKAGE, copy / "sparkinfer", ignore=shutil.ignore_patterns("__pycache__"))
    uri = store.local_uri(tmp_path)
    found = own_process(FAR, model.uri, str(tmp_path / "labels"), str(copy), uri)
    assert found["rows"] == 12
    assert store.open_client(uri).get_run(found["run"]).info.status == "FINISHED"
    assert found["paths"]
    assert all(path.split(os.pathsep)[0] == str(copy) for path in found["paths"]), (
        "case 24: another layout than the driver's"
    )
    assert all(cwd != str(tmp_path / "driver") for cwd in found["cwds"])
    executors = Path(pyspark.__file__).parent / "work"  # where the executors of a local cluster have their folders
    stray = [path for name in ("mlflow.db", "mlruns") for top in (tmp_path, executors) for path in top.rglob(name)]
    assert stray == [tmp_path / "mlflow.db"], "the driver's one store, and none in an executor's folder"


def test_case_22_mlflow_is_spoken_to_by_the_drivers_layers_only():
    """Workers and engines import neither tracking nor mlflow; a registered model is fetched with the URI that travels with it."""
    importers = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom) and _imports(node, "mlflow")
    }
    assert importers <= {"tracking", "model", "cli", "job"}


def _imports(node, package):
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return any(name.partition(".")[0] == package for name in names)


FIRST_USE = """
import sys
from sparkinfer.tracking.base import DatasetFacts, JobFacts, JobOutcome, RunStatus
from sparkinfer.tracking.mlflow import MlflowTracker
from sparkinfer.types import ModelRef

table = DatasetFacts(name="t", source="/t", format="delta", version=1)
model = ModelRef(uri="fake", name="fake", version="1", fingerprint="ab", kind="fake", location="fake")
tracker = MlflowTracker(finish_timeout_s=240)
tracker.start(JobFacts(job="j", run_key="k", model=model, config_hash="c", source=table, output=table, tracking_uri=sys.argv[1]))
print(tracker.finish(JobOutcome(status=RunStatus.FINISHED, metrics={"rows": 9.0})), tracker.warnings)
"""


def test_case_23_four_processes_make_first_use_of_one_sqlite_store(tmp_path):
    uri = store.local_uri(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_USE, uri], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
        )
        for _ in range(4)
    ]
    said = [process.communicate(timeout=280)[0].strip() for process in started]
    assert all(line.endswith(" []") for line in said), said
    client = store.open_client(uri)
    experiment = client.get_experiment_by_name(store.DEFAULT_EXPERIMENT)
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(r.info.run_id for r in runs) == sorted(line.removesuffix(" []") for line in said)
    assert {r.info.status for r in runs} == {"FINISHED"}
    assert not (tmp_path / "mlruns").exists()


def test_case_23_a_store_that_cannot_be_written_does_not_fail_the_job(job, monkeypatch):
    monkeypatch.setattr(store, "SQLITE_WAITS_S", ())
    tracker = MlflowTracker(finish_timeout_s=60)
    result = job.run(job.frame([(1, "a"), (2, "b")]), tracker=tracker, tracking_uri="sqlite:////proc/nowhere/mlflow.db")
    assert (result.rows, result.failed, result.mlflow_run_id) == (2, 0, None)
    assert len(tracker.warnings) == 1
    assert [row.id for row in job.rows()] == [1, 2]


def test_case_24_the_closure_is_small_and_holds_no_model(model):
    label = llm_udf(model=model.uri, prompt="x" * 2000 + "{text}", choices=[f"choice {i}" for i in range(500)])
    assert len(dumps(label.func)) < 100_000


def test_case_24_a_model_captured_by_mistake_is_refused_with_the_way_out(model):
    with pytest.raises(InvalidModelUri, match="never travels"):
        llm_udf(model=bytearray(70 * 1024 * 1024))
    too_large = llm_udf(model=model.uri, system="x" * (70 * 1024 * 1024))
    with pytest.raises(InvalidConfig, match="pass long text as a column"):
        too_large.resolve()


def test_case_24_nothing_uses_what_connect_does_not_have():
    """No SparkContext, RDD, broadcast or accumulator anywhere in the package, but for one attempt that has a way without."""
    absent = {
        "sparkContext",
        "_sc",
        "_jsc",
        "_jvm",
        "_jdf",
        "_jsparkSession",
        "rdd",
        "broadcast",
        "accumulator",
        "parallelize",
    }
    used = {
        (path.relative_to(PACKAGE).as_posix(), node.attr)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in absent
    }
    # A classic session can cancel jobs of other threads only by its context; test_pipeline.py shows what Connect gets instead.
    assert used == {("job/pipeline.py", "sparkContext")}


#: A whole job over Connect, run twice, and a column beside it.
CONNECT = """
import json, sys
from pyspark.sql import SparkSession, functions as F
from sparkinfer import llm_udf, run
from sparkinfer.tracking.base import NullTracker
from sparkinfer.udf.session import DELTA_CATALOG, DELTA_EXTENSION, RUNTIME_SETTINGS, delta_package

settings = {**RUNTIME_SETTINGS, "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.jars.packages": delta_package(),
            "spark.sql.extensions": DELTA_EXTENSION, "spark.sql.catalog.spark_catalog": DELTA_CATALOG}
builder = SparkSession.builder.remote("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
label = llm_udf(model=sys.argv[1], prompt="Say {text}")

def job(rows):
    frame = spark.createDataFrame(rows, "id int, text string")
    return run(spark, source=frame, into=sys.argv[2], udf=label, key="id", output="answer", tracker=NullTracker(), buckets=2)

first, again = job([(i, f"text {i % 5}") for i in range(10)]), job([(i, f"text {i % 5}") for i in range(12)])
changed = job([(i, f"changed {i}") for i in range(2)])
table = spark.read.format("delta").load(sys.argv[2])
print("RESULT " + json.dumps({
    "connect": "connect" in type(spark).__module__, "writer": first.writer, "rows": [first.rows, again.rows, changed.rows],
    "done": again.already_done, "ids": sorted(row.id for row in table.select("id").collect()),
}))
spark.stop()
"""


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_case_24_a_whole_job_runs_over_connect(model, tmp_path, own_process):
    found = own_process(CONNECT, model.uri, str(tmp_path / "labels"), timeout=800)
    assert found == {"connect": True, "writer": "delta-spark", "rows": [10, 2, 2], "done": 10, "ids": list(range(12))}
    assert model.requests == 5 + 2, "twins and repeats are asked once"
    eventually(lambda: not any(is_alive(event["pid"]) for event in model.events("load")), seconds=10)


RESOLVE = """
import errno, fcntl, sys
def refuse(*_):
    raise OSError(errno.ENOLCK, "no locks on this file system")
fcntl.flock = refuse
from sparkinfer.model import fetch, resolve
print(fetch(resolve(sys.argv[1])))
"""


def test_case_25_four_processes_make_one_download_where_file_locks_fail(tmp_path):
    hub = HubServer(write_model(tmp_path / "hub"))
    models = tmp_path / "cache" / "models"
    environment = {
        **os.environ,
        "PYTHONPATH": str(PACKAGE.parent),
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "hf"),
        "SPARKINFER_CACHE": str(tmp_path / "cache"),
    }

    def start(uri):
        return subprocess.Popen(
            [sys.executable, "-c", RESOLVE, uri], env=environment, stdout=subprocess.PIPE, text=True
        )

    first = start("org/tiny")
    name = Path(first.communicate(timeout=200)[0].strip()).name
    shutil.rmtree(models / name)
    hub.requests.clear()
    left = models / f"{name}.lock.owner"  # by a host that is gone: ten minutes without a sign of life
    left.write_text(json.dumps({"pid": 1, "start": "1", "host": "a host that is gone"}))
    old = time.time() - STALE_AFTER_S - 1
    os.utime(left, (old, old))

    started = [start("org/tiny") for _ in range(4)]
    seen: set[str] = set()
    while any(process.poll() is None for process in started):
        seen.update(
            path.name
            for path in models.iterdir()
            if path.is_dir() and (path / "config.json").exists() and not _is_whole(path)
        )
        time.sleep(0.01)
    outputs = {process.communicate()[0].strip() for process in started}
    assert [process.returncode for process in started] == [0] * 4
    assert outputs == {str(models / name)}
    assert hub.downloads("model.safetensors") == 1
    assert all(".part-" in folder for folder in seen), "what bears the model's name is whole"
    assert [path.name for path in models.iterdir() if path.is_dir()] == [name]
    assert not left.exists()

    hub.close()  # the pinned revision is here: no network call is made, or this one would fail
    pinned = start(f"org/tiny@{COMMIT}")
    assert pinned.communicate(timeout=200)[0].strip() == str(models / name)


def _is_whole(folder):
    return all((folder / name).exists() for name in ("config.json", "model.safetensors", "tokenizer.json"))
