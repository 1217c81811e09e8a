"""Arguments of run() against the source's schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    DataType,
    DayTimeIntervalType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from sparkinfer import job
from sparkinfer.errors import InvalidConfig, MissingColumn, ReservedColumn, TableSchemaMismatch, WrongColumnType
from sparkinfer.job.spec import JobSpec, check_spec, check_table
from sparkinfer.sink.base import TableColumn, TableFacts

SCHEMA = StructType(
    [StructField("Id", LongType()), StructField("body", StringType()), StructField("two words", StringType())]
)


def spec(**given: Any) -> JobSpec:
    arguments: dict[str, Any] = {
        "names": ["text"],
        "columns": {"text": "body"},
        "key": ["id"],
        "keep": (),
        "output": "answer",
        "mode": "latest",
        "retry_failed": False,
        "logprobs": False,
        **given,
    }
    return check_spec(arguments.pop("schema", SCHEMA), **arguments)


def test_names_are_taken_as_the_source_spells_them() -> None:
    made = spec(keep="ID", columns={"text": "BODY"})
    assert (made.key, made.kept, made.arguments) == (("Id",), ("Id",), (("text", "body"),))


def test_the_table_has_kept_columns_the_answer_the_struct_and_the_jobs() -> None:
    names = [column.name for column in spec(keep=["body"]).table_columns(SCHEMA)]
    assert names[:4] == ["Id", "body", "answer", "error_message"]
    assert names[-4:] == ["details", "row_key", "run_id", "bucket"]
    assert "logprobs" in [column.name for column in spec(logprobs=True).table_columns(SCHEMA)]


def test_params_are_an_argument_of_their_own() -> None:
    made = spec(columns={"text": "body", "params": "id"})
    assert (made.params, made.arguments) == ("Id", (("text", "body"),))


def test_a_column_spelt_as_asked_comes_before_one_in_other_case() -> None:
    schema = StructType([*SCHEMA.fields, StructField("BODY", StringType())])
    assert spec(schema=schema, names=["body"], columns=None).arguments == (("body", "body"),)
    assert spec(schema=schema, names=["BODY"], columns=None).arguments == (("BODY", "BODY"),)


def test_columns_left_out_are_those_of_the_arguments_names() -> None:
    assert spec(names=["body"], columns=None).arguments == (("body", "body"),)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"columns": {"text": "bodi"}}, MissingColumn, "Did you mean body"),
        ({"columns": {"txt": "body"}}, InvalidConfig, "the prompt does not have"),
        ({"columns": {}}, MissingColumn, "gives no column"),
        ({"columns": {"text": 3}}, InvalidConfig, "name of a source column"),
        ({"key": "nope"}, MissingColumn, "'nope' \\(key\\)"),
        ({"mode": "overwrite"}, InvalidConfig, "latest, append"),
        ({"output": "Error_Code"}, ReservedColumn, "column Error_Code of its own"),
        ({"output": "id"}, ReservedColumn, "kept column too"),
        ({"keep": "two words"}, InvalidConfig, "two words"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        spec(**given)


def test_merge_keys_follow_the_mode() -> None:
    assert spec().merge_keys == ("row_key",)
    assert spec(mode="append").merge_keys == ("row_key", "input_hash", "config_hash")


def table(*columns: tuple[str, str]) -> TableFacts:
    made = tuple(TableColumn(name=name, ddl=ddl) for name, ddl in columns)
    return TableFacts(version=0, table_id="t", columns=made)


def test_a_table_with_the_same_columns_in_any_order_and_case_is_the_jobs() -> None:
    expected = [TableColumn(name="a", ddl="MAP<STRING, STRING>"), TableColumn(name="b", ddl="INT")]
    check_table(table(("B", "int"), ("a", "map<string,string>")), expected, table="t")


def test_each_difference_to_an_existing_table_is_named() -> None:
    expected = [TableColumn(name="a", ddl="INT"), TableColumn(name="b", ddl="INT")]
    with pytest.raises(TableSchemaMismatch) as refused:
        check_table(table(("a", "string"), ("c", "int")), expected, table="t")
    assert "b (int) is missing; c (int) is not of this job; a is string, not int" in refused.value.message


def test_names_of_the_jobs_own_columns_are_refused_before_anything_runs() -> None:
    found = set()
    for path in Path(job.__file__).parent.glob("*.py"):
        found |= set(re.findall(r'"(__[a-z_]+)"', path.read_text()))
    assert {"__state", "__identity", "__rank"} <= found
    for name in sorted({*found, "__arg_3", "__STATE"}):
        schema = StructType([*SCHEMA.fields, StructField(name, StringType())])
        with pytest.raises(ReservedColumn, match="rename it in the source"):
            spec(schema=schema, keep=[name])
        with pytest.raises(ReservedColumn, match="rename it in the source"):
            spec(schema=schema, key=None)
    schema = StructType([*SCHEMA.fields, StructField("__index_level_0__", StringType())])
    assert spec(schema=schema, keep=["__index_level_0__"]).kept == ("Id", "__index_level_0__")


@pytest.mark.parametrize("kind", [NullType(), DayTimeIntervalType(), StringType("UTF8_LCASE")], ids=str)
def test_a_key_that_delta_cannot_hold_is_said_before_anything_runs(kind: DataType) -> None:
    schema = StructType([*SCHEMA.fields, StructField("odd", kind)])
    for given in ({"key": ["odd"]}, {"keep": ["odd"]}):
        with pytest.raises(WrongColumnType, match="column odd of type .* cast it"):
            spec(schema=schema, **given)
