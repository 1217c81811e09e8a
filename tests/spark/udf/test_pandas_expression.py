"""The pandas border of Spark 3.5 and 4.0, run on this Spark: the same rows as the Arrow UDF gives."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F

from sparkinfer import llm_udf
from sparkinfer.udf.pandas_expression import pandas_function
from sparkinfer.udf.worker import WorkerTask

SCHEMA = """id int, text string, flag boolean, day date, price decimal(12,7), n int,
    messages array<struct<role: string, content: string>>, params struct<max_tokens: int, temperature: double>"""
ROWS = [
    (1, "ä", True, date(2024, 2, 29), Decimal("0.0000001"), 1, [("user", "hi"), ("user", None)], (2, 0.5)),
    (2, None, None, None, None, 2, None, None),
    (3, "", False, date(1, 1, 1), Decimal("1.5"), -3, [], (None, None)),
]


def _pandas_udf(label):
    resolved = label.resolve()
    task = WorkerTask(
        engine_json=resolved.engine.to_json(),
        task_json=resolved.task.to_json(),
        is_struct=resolved.is_struct,
        has_logprobs=False,
    )
    return F.pandas_udf(pandas_function(task), resolved.return_type())


@pytest.mark.parametrize("fail_on_error", [False, None])
@pytest.mark.parametrize(
    "columns", [["text"], ["text", "flag", "day", "price", "n"], ["messages"]], ids=["one", "many", "messages"]
)
def test_pandas_and_arrow_give_the_same_rows(spark, model, columns, fail_on_error):
    frame = spark.createDataFrame(ROWS[: 2 if columns == ["messages"] else 3], SCHEMA).coalesce(1)
    prompt = None if len(columns) == 1 else " ".join(f"{{{name}}}" for name in columns)
    label = llm_udf(model=model.uri, prompt=prompt, fail_on_error=fail_on_error)
    both = frame.select(label(*columns).alias("arrow"), _pandas_udf(label)(*columns).alias("pandas")).collect()
    assert all(row.arrow == row.pandas for row in both)


def test_params_pass_the_pandas_border(spark, model):
    frame = spark.createDataFrame(ROWS[:1], SCHEMA)
    label = llm_udf(model=model.with_options(answer="abcdef").uri)
    row = frame.select(_pandas_udf(label)("text", "params").alias("r")).first()
    assert row.r == "ab"


def test_whole_numbers_with_nulls_are_refused_because_pandas_makes_them_floats(spark, model):
    frame = spark.createDataFrame([(2**53 + 1,), (None,)], "n bigint").coalesce(1)
    with pytest.raises(PythonException, match="cast it to string"):
        frame.select(_pandas_udf(llm_udf(model=model.uri))("n").alias("r")).collect()
