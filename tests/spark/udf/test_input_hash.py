"""The SQL form of every hash equals the Python one, over values that are easy to get wrong, in one Spark job each."""

from __future__ import annotations

import random
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sparkinfer.config.specs import TaskSpec
from sparkinfer.errors import MissingColumn, WrongColumnType
from sparkinfer.hashing import row_key
from sparkinfer.udf.input_hash import input_hash_column, row_key_column
from sparkinfer.udf.reading import RowReader

TEXTS = [None, "", " ", "null", "None", "nan", "\x00", "a\x00b", "ok", "ä", "日本語", "🙂", "🇩🇪 👨‍👩‍👧", "\ufeffbom", '"quoted"', "back\\slash",
         "{text}", "4:text", "\u2028\u2029", "\x7f\x80\x1f\x0b", "\r\n\t\b\f", "x" * 5000, "é", "e\u0301", "/", "</script>", "\ufffd"]  # fmt: skip
SCHEMA = """
    text string, byte byte, short short, number int, big long, flag boolean, day date, price decimal(10,2), tiny decimal(18,12),
    whole decimal(38,0), nothing void, messages array<struct<role: string, content: string>>,
    named array<struct<content: string, name: string, role: string>>,
    params struct<temperature: double, max_tokens: int, stop: array<string>, top_p: float, seed: bigint, ignore_eos: boolean,
                  min_p: decimal(4,3), note: string>,
    by_name map<string, double>
"""
NAMES = [
    "text",
    "byte",
    "short",
    "number",
    "big",
    "flag",
    "day",
    "price",
    "tiny",
    "whole",
    "nothing",
    "messages",
    "named",
]
FLOATS = [
    0.0,
    -0.0,
    1.0,
    0.1,
    -2.5,
    1e-320,
    5e-324,
    1.7976931348623157e308,
    2.2250738585072014e-308,
    1 / 3,
    float("inf"),
    float("nan"),
]


def _row(rng: random.Random) -> tuple:
    def maybe(value: object) -> object:
        return None if rng.random() < 0.15 else value

    def text() -> object:
        return rng.choice(TEXTS)

    def messages(*extra: str) -> object:
        return [
            maybe({"role": text(), "content": text(), **{name: text() for name in extra}})
            for _ in range(rng.randrange(4))
        ]

    return (
        text(),
        maybe(rng.randrange(-128, 128)),
        maybe(rng.randrange(-(2**15), 2**15)),
        maybe(rng.choice([0, -1, 2**31 - 1, -(2**31), rng.randrange(10**6)])),
        maybe(rng.choice([2**53 + 1, -(2**63), 2**63 - 1])),
        maybe(rng.random() < 0.5),
        maybe(
            rng.choice([date(1, 1, 1), date(1582, 10, 15), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)])
        ),
        maybe(Decimal(rng.choice(["0.00", "-0.01", "99999999.99", "1.50"]))),
        maybe(
            Decimal(rng.choice(["0.000000000000", "0.000000000001", "-0.000000012300", "-1.5", "123456.000000000001"]))
        ),
        maybe(Decimal(rng.choice(["0", "-1", "9" * 38]))),
        None,
        maybe(messages()),
        maybe(messages("name")),
        maybe(
            {
                "temperature": maybe(rng.choice(FLOATS)),
                "max_tokens": maybe(rng.randrange(1000)),
                "stop": maybe([maybe(text()) for _ in range(rng.randrange(3))]),
                "top_p": maybe(rng.choice([0.5, 0.1, 1.0])),
                "seed": maybe(-(2**63)),
                "ignore_eos": maybe(True),
                "min_p": maybe(Decimal(rng.choice(["0.700", "0.001", "0.000"]))),
                "note": text(),
            }
        ),
        maybe({rng.choice(["temperature", "top_p", "ä", 'a"b', "🙂"]): maybe(rng.choice(FLOATS)) for _ in range(3)}),
    )


@pytest.fixture(scope="module")
def rows(spark: SparkSession):
    rng = random.Random(7)
    return spark.createDataFrame([_row(rng) for _ in range(400)], SCHEMA).cache()


def _python_hashes(table: pa.Table, names: list[str], params: str | None) -> list[str]:
    batch = table.combine_chunks().to_batches()[0]
    columns = [batch.column(name) for name in [*names, *([params] if params else [])]]
    return [request.input_hash for request in RowReader(TaskSpec(prompt=None, names=tuple(names))).read(columns, 0)]


@pytest.mark.parametrize("params", [None, "params", "by_name"])
def test_sql_and_python_give_the_same_input_hash(rows, params):
    expression = input_hash_column(rows.schema, names=NAMES, columns={}, params=params)
    table = rows.withColumn("in_sql", expression).toArrow()
    assert table.column("in_sql").to_pylist() == _python_hashes(table, NAMES, params)


def test_a_float_that_is_almost_another_has_another_hash(spark):
    frame = spark.createDataFrame(
        [("a", {"temperature": 0.1}), ("a", {"temperature": 0.1 + 1e-17 * 5})],
        "text string, p struct<temperature: double>",
    )
    hashes = [
        r.h
        for r in frame.select(
            input_hash_column(frame.schema, names=["text"], columns={}, params="p").alias("h")
        ).collect()
    ]
    assert len(set(hashes)) == len({0.1, 0.1 + 1e-17 * 5})


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_small_decimals_have_no_exponent_in_either_mode(spark, ansi):
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        values = [Decimal("0.0000000"), Decimal("0.0000012"), Decimal("-0.0000003"), Decimal("12.0000000"), None]
        frame = spark.createDataFrame([(value,) for value in values], "n decimal(12,7)")
        table = frame.withColumn("h", input_hash_column(frame.schema, names=["n"], columns={})).toArrow()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    assert table.column("h").to_pylist() == _python_hashes(table.select(["n"]), ["n"], None)


def test_text_that_is_no_utf8_is_hashed_by_its_bytes(spark):
    frame = spark.sql("SELECT stack(3, X'6f6bff', X'eda0bd', X'f09f98') AS b").select(
        F.expr("cast(b AS string)").alias("text")
    )
    in_sql = [
        row.h for row in frame.select(input_hash_column(frame.schema, names=["text"], columns={}).alias("h")).collect()
    ]
    column = pa.array([b"ok\xff", b"\xed\xa0\xbd", b"\xf0\x9f\x98"], pa.binary()).view(pa.string())
    requests = RowReader(TaskSpec(prompt=None, names=("text",))).read([column], 0)
    assert in_sql == [request.input_hash for request in requests]
    assert all(request.warnings == ("INVALID_UTF8",) for request in requests)
    assert requests[0].values == ("ok\ufffd",)


def test_the_row_key_is_the_same_in_sql_and_python(spark):
    frame = spark.createDataFrame([("a", 1), ("b", None), ("", -1)], "name string, id long")
    found = [row.k for row in frame.select(row_key_column(frame.schema, key=["id", "name"]).alias("k")).collect()]
    expected = [row_key(["id", "name"], v, "is") for v in ([b"1", b"a"], [None, b"b"], [b"-1", b""])]
    assert found == expected


def test_the_row_key_takes_every_type_and_tells_rows_apart(spark):
    frame = spark.sql(
        "SELECT * FROM VALUES (timestamp'2024-01-01 00:00:00', 1.5D, X'00ff', array(1, 2), map('a', 1), named_struct('x', 1)),"
        " (timestamp'2024-01-01 00:00:01', 1.5D, X'00ff', array(1, 2), map('a', 1), named_struct('x', 1)),"
        " (timestamp'2024-01-01 00:00:00', -1.5D, X'00ff', array(1, 2), map('a', 1), named_struct('x', 1)),"
        " (null, null, null, null, null, null) AS t(ts, d, b, a, m, s)"
    )
    keys = [row.k for row in frame.select(row_key_column(frame.schema, key=frame.columns).alias("k")).collect()]
    assert len(set(keys)) == 4
    assert None not in keys


def test_the_timestamp_key_does_not_depend_on_the_time_zone(spark):
    frame = spark.sql("SELECT timestamp_micros(1700000000000000) AS ts")
    expression = row_key_column(frame.schema, key=["ts"])
    first = frame.select(expression).first()[0]
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert frame.select(expression).first()[0] == first
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_columns_are_found_by_their_exact_name_dots_and_all(spark):
    frame = spark.createDataFrame([("x", "y")], "`a.b` string, `q``s` string")
    expression = input_hash_column(frame.schema, names=["text", "more"], columns={"text": "a.b", "more": "q`s"})
    assert len(frame.select(expression).first()[0]) == 64


@pytest.mark.parametrize(
    "kind", ["double", "float", "timestamp", "binary", "array<string>", "struct<a: int>", "map<string, string>"]
)
def test_types_without_an_exact_text_are_refused_on_the_driver(spark, kind):
    schema = spark.sql(f"SELECT CAST(null AS {kind}) AS c").schema
    with pytest.raises(WrongColumnType, match="cast it to string"):
        input_hash_column(schema, names=["c"], columns={})


def test_a_missing_column_is_named_beside_what_there_is(spark):
    schema = spark.sql("SELECT 'a' AS body").schema
    with pytest.raises(MissingColumn, match=r"no column 'text'.*body"):
        input_hash_column(schema, names=["text"], columns={})
