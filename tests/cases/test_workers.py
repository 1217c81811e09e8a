"""Field failures 6 to 14: workers that come and go, models loaded again and again, processes that stay or make others wait."""

from __future__ import annotations

import threading
import time

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F

from sparkinfer import llm_udf
from tests.support.engines import eventually
from tests.support.executors import is_alive, kill, python_workers

ONE_AT_A_TIME = {"spark.sparkinfer.engine.max_batch_size": 4, "spark.sparkinfer.engine.batch_timeout_ms": 0}


def _texts(spark, rows, partitions=2):
    return spark.range(0, rows, 1, partitions).select("id", F.concat(F.lit("text "), "id").alias("text"))


class Running(threading.Thread):
    """An action on another thread; ``result()`` gives its value or raises its error."""

    def __init__(self, action):
        super().__init__(daemon=True)
        self._action, self._value, self._error = action, None, None
        self.start()

    def run(self):
        try:
            self._value = self._action()
        except Exception as error:
            self._error = error

    def result(self, seconds=240):
        self.join(seconds)
        assert not self.is_alive(), "it waits for ever"
        if self._error is not None:
            raise self._error
        return self._value


def test_case_06_fifty_partitions_a_shuffle_and_a_second_action_load_one_model(spark, model, tmp_path):
    answered = _texts(spark, 200, 50).withColumn("r", llm_udf(model=model.uri)("text"))
    assert len(answered.collect()) == 200
    answered.repartition(4, "r").write.parquet(str(tmp_path / "out"))
    assert answered.filter("r is not null").select("r").distinct().count() == 200
    assert (model.loads, model.requests) == (1, 200)


#: Two jobs more than a minute apart: Spark closes idle workers after one.
IDLE = """
import json, os, sys, time
from pyspark.sql import functions as F
from sparkinfer import llm_udf, session
from tests.support.executors import is_alive, python_workers

spark = session(master="local[2,4]", config={"spark.ui.enabled": "false", "spark.local.dir": sys.argv[2]})
label = llm_udf(model=sys.argv[1])

def job():
    return len(spark.range(0, 20, 1, 2).select(label(F.col("id").cast("string")).alias("r")).collect())

rows = [job()]
workers = python_workers()
time.sleep(75)
alive = [pid for pid in workers if is_alive(pid)]
rows.append(job())
spark.stop()
engine = json.loads(open(sys.argv[1].removeprefix("fake:?log=")).readline())["pid"]
until = time.monotonic() + 10
while is_alive(engine) and time.monotonic() < until:
    time.sleep(0.1)
left = [os.path.join(at, name) for at, _, names in os.walk(sys.argv[2]) for name in names if "sparkinfer" in at]
print("RESULT " + json.dumps({"rows": rows, "workers": len(workers), "alive": alive, "engine": is_alive(engine), "left": left}))
"""


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_case_07_the_model_outlives_workers_that_spark_closes_after_an_idle_minute(model, tmp_path, own_process):
    (tmp_path / "local").mkdir()
    found = own_process(IDLE, model.uri, str(tmp_path / "local"))
    assert found.pop("workers") > 0
    assert found == {"rows": [20, 20], "alive": [], "engine": False, "left": []}
    assert (model.loads, model.requests) == (1, 20)


def test_case_08_running_the_cell_again_loads_nothing_and_another_version_only_itself(spark, model):
    texts = _texts(spark, 8).cache()

    def cell(fake, **arguments):
        return texts.withColumn("r", llm_udf(model=fake.uri, **arguments)("text")).collect()

    for _ in range(5):
        cell(model)
    assert (model.loads, model.requests) == (1, 8)
    cell(model, max_tokens=7)
    assert (model.loads, model.requests) == (1, 16)
    cell(model.with_options(answer="version-2"))
    assert model.loads == 2


def test_case_08_the_old_version_is_evicted_when_idle(spark, model, settings):
    settings({"spark.sparkinfer.engine.idle_timeout_s": 3})
    for version in ("1", "2"):
        _texts(spark, 2).withColumn("r", llm_udf(model=model.with_options(answer=version).uri)("text")).collect()
    old, new = (event["pid"] for event in model.events("load"))
    assert old != new
    eventually(lambda: not is_alive(old))


@pytest.mark.parametrize("moment", ["idle", "in the middle of a batch"])
def test_case_09_a_killed_python_worker_loses_no_result(spark, model, settings, moment):
    settings(ONE_AT_A_TIME)
    fake = model if moment == "idle" else model.with_options(step_ms="400")
    answered = _texts(spark, 40).withColumn("r", llm_udf(model=fake.uri)("text"))
    if moment == "idle":
        answered.collect()
        for pid in python_workers():
            kill(pid)
        found = answered.collect()
    else:
        running = Running(answered.collect)
        eventually(lambda: model.requests >= 4)
        for pid in python_workers():
            kill(pid)
        found = running.result()
    assert len(found) == len({row.r for row in found}) == 40
    assert model.loads == 1
    assert 40 <= model.requests <= 40 + (0 if moment == "idle" else 4), "only the batch that ran may be paid again"


#: Memory of all Python processes of the executor, four slots, with a small and with a large model.
MEMORY = """
import json, sys
from pathlib import Path
from pyspark.sql import functions as F
from sparkinfer import llm_udf, session
from tests.support.executors import descendants

def pss(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) // 1024

def measured(log, megabytes):
    label = llm_udf(model=f"fake:?log={log}&load_mb={megabytes}")
    rows = spark.range(0, 400, 1, 8).select(label(F.col("id").cast("string")).alias("r")).collect()
    loads = [json.loads(line)["pid"] for line in open(log) if '"load"' in line]
    workers = [pid for pid, command in descendants().items() if "pyspark.daemon" in command]
    return len(rows), len(loads), sum(map(pss, workers + loads))

spark = session(master="local[4,4]", config={"spark.ui.enabled": "false"})
measured(sys.argv[1] + ".warm", 1)
small, large = measured(sys.argv[1] + ".small", 1), measured(sys.argv[1] + ".large", 200)
print("RESULT " + json.dumps({"rows": [small[0], large[0]], "loads": [small[1], large[1]], "more_mb": large[2] - small[2]}))
spark.stop()
"""


@pytest.mark.faults
def test_case_10_four_slots_hold_one_copy_of_the_weights(model, own_process):
    found = own_process(MEMORY, str(model.log))
    assert found["rows"] == [400, 400]
    assert found["loads"] == [1, 1]
    assert 150 < found["more_mb"] < 1.5 * 200


def test_case_11_empty_partitions_start_no_engine_and_keep_the_schema(spark, model):
    label = llm_udf(model=model.uri, fail_on_error=False)
    empty = spark.createDataFrame([], "text string").withColumn("r", label("text"))
    assert empty.collect() == []
    nulls = spark.createDataFrame([(None,)] * 50, "text string").repartition(8)
    assert [row.r.finish_reason for row in nulls.withColumn("r", label("text")).collect()] == ["skipped"] * 50
    none = nulls.limit(0).withColumn("r", label("text"))
    assert none.collect() == []
    assert none.schema["r"].dataType == empty.schema["r"].dataType
    assert model.loads == 0
    one = spark.createDataFrame([("a",)], "text string").repartition(8)
    assert one.withColumn("r", label("text")).count() == 1, "a count needs no answers"
    assert len(one.withColumn("r", label("text")).collect()) == 1
    assert (model.loads, model.requests) == (1, 1)


@pytest.mark.faults
def test_case_11_a_barrier_job_with_an_empty_partition_ends(spark, model):
    one = spark.createDataFrame([("a",)], "text string").repartition(2)
    answered = one.withColumn("r", llm_udf(model=model.uri)("text")).select("r")
    assert len(answered.mapInArrow(_through, "r string", barrier=True).collect()) == 1
    assert (model.loads, model.requests) == (1, 1)


def _through(batches):
    from pyspark import BarrierTaskContext

    rows = list(batches)
    BarrierTaskContext.get().barrier()
    yield from rows


#: torch and tokenizers used in the driver and in an earlier UDF, then the engine of a real model.
FORKED = """
import json, os, sys
os.environ.pop("TOKENIZERS_PARALLELISM", None)  # so that a fork after parallel tokenizing would be said
from pyspark.sql import functions as F
from sparkinfer import llm_udf, session
from tests.support.executors import descendants

spark = session(master="local[2,4]", config={"spark.ui.enabled": "false"})

def use_both(folder):
    import torch
    from transformers import AutoTokenizer

    if torch.cuda.is_available():
        torch.cuda.init()
    AutoTokenizer.from_pretrained(folder)(["many words " * 50] * 64)
    return float((torch.ones(512, 512) @ torch.ones(512, 512)).sum())

here = use_both(sys.argv[1])
earlier = spark.range(0, 8, 1, 2).select(F.udf(lambda i, folder=sys.argv[1], use=use_both: use(folder), "double")("id")).collect()
label = llm_udf(model=sys.argv[1], max_tokens=4, fail_on_error=False)
rows = spark.range(0, 8, 1, 2).select(label(F.concat(F.lit("text "), "id")).alias("r")).collect()
engines = [pid for pid, command in descendants().items() if "sparkinfer.host.main" in command]
print("RESULT " + json.dumps({
    "earlier": len(earlier), "errors": [row.r.errorMessage for row in rows if row.r.errorCode], "rows": len(rows),
    "engines": len(engines), "sessions": [os.getsid(pid) == pid for pid in engines],
}))
spark.stop()
"""


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_case_12_torch_and_tokenizers_before_the_engine_do_no_harm(tmp_path, own_process):
    from tests.support.tiny_llama import save_tiny_llama

    save_tiny_llama(tmp_path / "model")
    found = own_process(FORKED, str(tmp_path / "model"))
    assert found == {"earlier": 8, "errors": [], "rows": 8, "engines": 1, "sessions": [True]}, (
        "an exec of its own, no fork"
    )
    said = (tmp_path / "driver" / "stderr").read_text()
    assert "forked" not in said


@pytest.mark.parametrize("interrupt", [True, False])
def test_case_13_a_cancelled_job_stops_paying(spark, model, settings, interrupt):
    settings(ONE_AT_A_TIME)
    answered = _texts(spark, 400).withColumn("r", llm_udf(model=model.with_options(step_ms="300").uri)("text"))
    group = f"case-13-{interrupt}"

    def action():
        spark.sparkContext.setJobGroup(group, "to be cancelled", interruptOnCancel=interrupt)
        return answered.collect()

    running = Running(action)
    eventually(lambda: model.requests >= 4)
    workers = python_workers()
    spark.sparkContext.cancelJobGroup(group)
    with pytest.raises(Exception, match="cancelled"):
        running.result()
    eventually(lambda: not all(map(is_alive, workers)), seconds=60)  # Spark kills them some seconds later
    seen = [model.requests]

    def is_quiet():
        seen.append(model.requests)
        time.sleep(1)
        return model.requests == seen[-1]

    eventually(is_quiet, seconds=10)
    assert model.requests < 400
    assert len(answered.limit(2).collect()) == 2, "the engine serves on"
    assert model.loads == 1


#: One of two executor JVMs is killed while both have work; its engine has to go with it, and the job has to end.
EXECUTOR = """
import json, os, sys, threading, time
from pyspark.sql import functions as F
from sparkinfer import llm_udf, session
from tests.support.executors import descendants, executor_jvms, is_alive, kill

log, uri = sys.argv[1:]
spark = session(master="local-cluster[2,1,1024]", config={"spark.ui.enabled": "false", "spark.executor.memory": "1g"})
texts = spark.range(0, 80, 1, 8).select(F.concat(F.lit("text "), "id").alias("t"))
answered = texts.select(llm_udf(model=uri)("t").alias("r"))
rows = []
job = threading.Thread(target=lambda: rows.extend(answered.collect()))

def events(kind):
    return [e for e in map(json.loads, open(log)) if e["event"] == kind] if os.path.exists(log) else []

job.start()
while len({e["pid"] for e in events("request")}) < 2:
    time.sleep(0.05)
jvms = executor_jvms()
engines = {e["pid"] for e in events("load")}
kill(jvms[0])
until = time.monotonic() + 10
while all(map(is_alive, engines)) and time.monotonic() < until:
    time.sleep(0.05)
gone = [pid for pid in engines if not is_alive(pid)]
job.join(300)
before_stop = {e["pid"] for e in events("load")}
spark.stop()
until = time.monotonic() + 10
while any(map(is_alive, before_stop)) and time.monotonic() < until:
    time.sleep(0.05)
print("RESULT " + json.dumps({
    "jvms": len(jvms), "engines": len(engines), "gone": len(gone), "rows": len({row.r for row in rows}), "ended": not job.is_alive(),
    "left": [pid for pid in before_stop if is_alive(pid)],
}))
os._exit(0)
"""


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_case_13_an_engine_goes_with_its_killed_executor(model, own_process):
    slow = model.with_options(step_ms="1500")
    found = own_process(EXECUTOR, str(model.log), slow.uri)
    assert found == {"jvms": 2, "engines": 2, "gone": 1, "rows": 80, "ended": True, "left": []}


def test_case_14_an_engine_killed_in_the_middle_of_a_batch_is_replaced(spark, model, settings):
    settings(ONE_AT_A_TIME)
    answered = _texts(spark, 40).withColumn("r", llm_udf(model=model.with_options(step_ms="300").uri)("text"))
    running = Running(answered.collect)
    eventually(lambda: model.requests >= 8)
    (load,) = model.events("load")
    kill(load["pid"])
    found = running.result()
    assert len(found) == len({row.r for row in found}) == 40
    assert model.loads == 2
    assert model.requests <= 40 + 4, "only the batch that ran is paid again"


def test_case_14_an_engine_out_of_memory_tells_every_row_and_every_task(spark, model):
    fake = model.with_options(oom="text 3")
    texts = _texts(spark, 8)
    found = texts.withColumn("r", llm_udf(model=fake.uri, fail_on_error=False)("text")).collect()
    assert {row.id: row.r.errorCode for row in found if row.r.errorCode} == {3: "OUT_OF_MEMORY"}
    with pytest.raises(PythonException, match="out of memory for this row"):
        texts.withColumn("r", llm_udf(model=fake.uri)("text")).collect()


def test_case_14_an_engine_that_cannot_start_tells_every_task_its_own_words(spark, model):
    broken = model.with_options(load_error="no such weights", load_ms="500")
    running = Running(lambda: _texts(spark, 40, 8).withColumn("r", llm_udf(model=broken.uri)("text")).collect())
    with pytest.raises(PythonException, match="no such weights"):
        running.result()
    assert model.loads == 0


#: The engine of one of two executors can never start; the other's can.
HALF = """
import json, sys
from pyspark.sql import functions as F
from sparkinfer import llm_udf, session

spark = session(master="local-cluster[2,1,1024]", config={"spark.ui.enabled": "false", "spark.executor.memory": "1g"})
texts = spark.range(0, 80, 1, 8).select(F.concat(F.lit("text "), "id").alias("t"))
try:
    said, rows = "", len(texts.select(llm_udf(model=sys.argv[1])("t").alias("r")).collect())
except Exception as error:
    said, rows = str(error), 0
spark.stop()
print("RESULT " + json.dumps({"rows": rows, "said": said}))
"""


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_case_14_an_engine_that_cannot_start_on_one_of_two_executors_holds_nobody(model, tmp_path, own_process):
    lame = model.with_options(step_ms="200", lame=str(tmp_path / "lame"))
    found = own_process(HALF, lame.uri, timeout=240)
    assert found["rows"] == 80 or "this executor is lame" in found["said"]
    assert (tmp_path / "lame").exists(), "one executor did fail"
    eventually(lambda: not any(is_alive(event["pid"]) for event in model.events("load")), seconds=10)
