"""Field failures 1 to 5: Spark evaluates a column more than once, earlier or later than written, or refuses to."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from sparkinfer import llm_udf

ROWS = 20
TROUBLESHOOTING = Path(__file__).parents[2] / "docs" / "troubleshooting.md"


@pytest.fixture(scope="module")
def rows(spark):
    return (
        spark.createDataFrame([(i, f"text {i}") for i in range(ROWS)], "id int, t string").repartition(2, "id").cache()
    )


@pytest.fixture
def labelled(rows, model):
    return rows.withColumn("r", llm_udf(model=model.uri, choices=["x", "y"], fail_on_error=False)("t"))


def _in_a_view(frame):
    frame.createOrReplaceTempView("labelled_rows")
    return frame.sparkSession.sql("SELECT id, r FROM labelled_rows WHERE r.result = 'x'")


@pytest.mark.parametrize(
    "chosen",
    [
        lambda frame: frame.filter("r.result = 'x'").select("id", "r"),
        _in_a_view,
        lambda frame: frame.join(
            frame.sparkSession.createDataFrame([("x",)], "k string"), F.col("r.result") == F.col("k")
        ).select("id", "r"),
    ],
    ids=["filter", "view", "join key"],
)
def test_case_01_filter_on_a_udf_column_pays_each_row_once(labelled, model, chosen):
    frame = chosen(labelled)
    assert frame._jdf.queryExecution().executedPlan().toString().count("ArrowEvalPython") >= 2, (
        "Spark evaluates it twice"
    )
    found = {row.id: row.r for row in frame.collect()}
    whole = {row.id: row.r for row in labelled.collect()}
    assert 0 < len(found) < ROWS
    assert found == {i: answer for i, answer in whole.items() if answer.result == "x"}, "the identical struct each time"
    assert (model.requests, model.loads) == (ROWS, 1)


@pytest.mark.parametrize(
    "ordered",
    [
        lambda frame, path: frame.orderBy("r.result", "id").write.parquet(path),
        lambda frame, path: frame.repartitionByRange(2, "r.result").write.parquet(path),
        lambda frame, path: frame.orderBy("r.result").collect(),
    ],
    ids=["orderBy and write", "repartitionByRange and write", "orderBy"],
)
def test_case_02_order_by_a_udf_column_pays_each_row_once_though_the_memo_spills(
    spark, model, settings, tmp_path, ordered
):
    settings({"spark.sparkinfer.engine.memo_bytes": 2000})  # room for three answers
    many = spark.range(0, 300, 1, 2).withColumn("t", F.concat(F.lit("text "), "id"))
    ordered(many.withColumn("r", llm_udf(model=model.uri, fail_on_error=False)("t")), str(tmp_path / "out"))
    assert (model.requests, model.loads) == (300, 1)


LIMITS = {
    "limit": lambda frame: frame.limit(5).collect(),
    "show": lambda frame: frame.show(5),
    "head": lambda frame: frame.head(1),
    "filter and limit": lambda frame: frame.filter("r.result is not null").limit(5).collect(),
}


def _thousand(spark, model):
    many = spark.range(0, 1000, 1, 2).select(F.concat(F.lit("text "), "id").alias("t"))
    return many.withColumn("r", llm_udf(model=model.uri, fail_on_error=False)("t"))


@pytest.mark.parametrize("read", LIMITS)
def test_case_03_who_reads_five_rows_of_a_thousand_pays_for_at_most_64(spark, model, read):
    LIMITS[read](_thousand(spark, model))
    assert 1 <= model.requests <= 64


def test_case_03_with_sparks_own_buffer_a_filter_and_limit_pay_for_one_partition_at_most(spark, model, settings):
    defaults = {
        "spark.sql.execution.pandas.udf.buffer.size": 65536,
        "spark.sql.execution.arrow.maxRecordsPerBatch": 10000,
    }
    settings(defaults)
    LIMITS["filter and limit"](_thousand(spark, model))
    assert 1 <= model.requests <= 500
    page = TROUBLESHOOTING.read_text()
    assert all(f"`{name}`" in page for name in defaults), "the bound and its reason are documented"


def test_case_04_an_upsert_merges_staged_answers_and_pays_only_for_what_changed(job):
    job.run(job.frame([(i, f"text {i}") for i in range(ROWS)]), buckets=1)
    changed = job.run(job.frame([(i, f"text {i}" if i % 2 else f"changed {i}") for i in range(ROWS + 4)]))
    history = [row.operation for row in job.spark.sql(f"DESCRIBE HISTORY delta.`{job.into}`").collect()]
    assert "MERGE" in history
    assert (changed.rows, changed.requests) == (ROWS // 2 + 4, ROWS // 2 + 4)
    assert [row.id for row in job.rows()] == list(range(ROWS + 4))
    assert len(job.requests()) == len(set(job.requests())) == ROWS + ROWS // 2 + 4


#: An upsert on two executors, one of which is killed while its MERGE runs.
UPSERT = """
import json, sys, threading
from pathlib import Path
from sparkinfer import llm_udf, run, session
from sparkinfer.sink.delta_spark import DeltaSparkSink
from sparkinfer.tracking.base import NullTracker
from tests.support.executors import executor_jvms, kill

model, into = sys.argv[1:]
spark = session(master="local-cluster[2,1,1024]", config={"spark.ui.enabled": "false", "spark.executor.memory": "1g"})

class Sink(DeltaSparkSink):
    killed = 0

    def merge(self, staged, on, commit, **where):
        threading.Timer(0.3, kill, [executor_jvms()[0]]).start()
        Sink.killed += 1
        super().merge(staged, on, commit, **where)

def upsert(rows):
    frame = spark.createDataFrame(rows, "id int, text string").repartition(2)
    udf = llm_udf(model=model, prompt="Say {text}")
    return run(spark, source=frame, into=Sink(spark, into), udf=udf, key="id", output="answer", buckets=1, tracker=NullTracker())

upsert([(i, f"text {i}") for i in range(20)])
second = upsert([(i, f"changed {i}") for i in range(20)])
rows = spark.read.format("delta").load(into).orderBy("id").collect()
print("RESULT " + json.dumps({"killed": Sink.killed, "second": second.rows, "ids": [row.id for row in rows]}))
spark.stop()
"""


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_case_04_an_executor_killed_inside_the_merge_costs_no_request(model, tmp_path, own_process):
    found = own_process(UPSERT, model.uri, str(tmp_path / "labels"))
    assert found == {"killed": 1, "second": 20, "ids": list(range(20))}
    assert model.requests == 40, "N for the first run, N for the upsert"


PLACES = {
    "a join condition": lambda rows, llm: rows.join(
        rows.select(llm("t").alias("b")).distinct(), llm("t") == F.col("b")
    ).collect(),
    "groupBy": lambda rows, llm: rows.groupBy(llm("t")).count().collect(),
    "orderBy": lambda rows, llm: rows.orderBy(llm("t")).collect(),
    "an aggregate": lambda rows, llm: rows.agg(F.max(llm("t"))).collect(),
}


@pytest.mark.parametrize("place", PLACES)
def test_case_05_a_deterministic_udf_may_stand_in(rows, model, place):
    found = PLACES[place](rows, llm_udf(model=model.uri))
    assert len(found) == (1 if place == "an aggregate" else ROWS)
    assert model.requests == ROWS


def test_case_05_a_deterministic_udf_may_stand_in_a_merge_condition_and_source(spark, rows, model, tmp_path):
    llm, path = llm_udf(model=model.uri), str(tmp_path / "target")
    rows.select("id", llm("t").alias("label")).write.format("delta").save(path)
    spark.udf.register("label_of", llm)
    rows.createOrReplaceTempView("merge_source")
    spark.sql(
        f"MERGE INTO delta.`{path}` AS t USING (SELECT id, t AS text, label_of(t) AS again FROM merge_source) AS s "
        "ON label_of(s.text) = t.label AND s.again = t.label WHEN MATCHED THEN UPDATE SET id = s.id + 100"
    ).collect()
    assert sorted(row.id for row in spark.read.format("delta").load(path).collect()) == [i + 100 for i in range(ROWS)]
    assert model.requests == ROWS


def test_case_05_a_column_drawn_anew_is_refused_by_spark_and_the_fix_is_documented(rows, model):
    drawn = llm_udf(model=model.uri, temperature=1.0, seed=None)
    with pytest.raises(AnalysisException, match="INVALID_NON_DETERMINISTIC_EXPRESSIONS"):
        rows.alias("a").join(rows.alias("b"), drawn(F.col("a.t")) == F.col("b.t")).collect()
    with pytest.raises(AnalysisException, match="AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION"):
        rows.agg(F.max(drawn("t"))).collect()
    page = TROUBLESHOOTING.read_text()
    for code in ("INVALID_NON_DETERMINISTIC_EXPRESSIONS", "AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION"):
        assert "withColumn" in page.split(code)[1].split("\n\n")[0]
    first = rows.withColumn("r", drawn("t"))
    assert first.join(rows.select(F.col("t").alias("k")), F.col("t") == F.col("k")).agg(F.max("r")).first()[0]
