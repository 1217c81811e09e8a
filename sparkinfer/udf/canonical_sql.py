"""Canonical text of Spark columns as SQL expressions: the same bytes that :mod:`sparkinfer.udf.reading` makes in Python.

No Python UDF is in them: a job hashes and cuts its rows with these before anything is inferred.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
)

from sparkinfer.errors import WrongColumnType
from sparkinfer.hashing import NULL_TAG, PARAMS_NAME, canonical_json


def value_text(name: str, column: Column, kind: DataType) -> tuple[str, Column]:
    """A prompt argument's tag and its canonical text (null where it is null).

    Raises:
        WrongColumnType: a type without an exact text.
    """
    if isinstance(kind, NullType):
        return NULL_TAG, sql.lit(None).cast("string")
    if isinstance(kind, StringType):
        return "s", column.cast("string")
    if isinstance(kind, IntegralType):
        return "i", column.cast("string")
    if isinstance(kind, BooleanType):
        return "b", column.cast("string")
    if isinstance(kind, DateType):
        return "d", column.cast("string")
    if isinstance(kind, DecimalType):
        return "n", decimal_text(column, kind)
    fields = message_fields(kind)
    if fields is not None:
        return "m", messages_text(column, fields)
    raise WrongColumnType(
        f"Column for {name!r} is of type {kind.simpleString()}, which has no exact text; cast it to string, "
        f"for example col({name!r}).cast('string')."
    )


def decimal_text(column: Column, kind: DecimalType) -> Column:
    """All digits of the scale and no exponent; Spark writes ``1E-7`` outside ANSI mode."""
    text = column.cast("string")
    if kind.scale <= 6:
        return text
    digits = sql.regexp_replace(sql.regexp_extract(text, r"^-?([0-9.]+)E", 1), r"\.", "")
    sign = sql.when(text.startswith("-"), "-").otherwise("")
    plain = sql.concat(sign, sql.lit("0."), sql.lpad(digits, kind.scale, "0"))
    return sql.when(text.contains("E"), plain).otherwise(text)


def message_fields(kind: DataType) -> list[str] | None:
    """Field names of messages, an array of structs of strings with role and content; None for every other type."""
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return None
    fields = kind.elementType.fields
    is_text = all(isinstance(field.dataType, StringType | NullType) for field in fields)
    names = [field.name for field in fields]
    return sorted(names) if is_text and {"role", "content"} <= set(names) else None


def messages_text(column: Column, names: Sequence[str]) -> Column:
    """Messages as canonical JSON, null fields kept; ``names`` in order."""

    def message(item: Column) -> Column:
        parts = [sql.concat(sql.lit(f"{_json_name(name)}:"), _json_string(item.getField(name))) for name in names]
        return sql.when(item.isNull(), "null").otherwise(
            sql.concat(sql.lit("{"), sql.concat_ws(",", *parts), sql.lit("}"))
        )

    return _json_list(column, sql.transform(column, message))


def params_text(column: Column, kind: DataType) -> Column:
    """A ``params`` struct or map as canonical JSON: names in order, null fields left out, floats as their exact text.

    Raises:
        WrongColumnType: not such a struct or map.
    """
    if isinstance(kind, NullType):
        return sql.lit(None).cast("string")
    if isinstance(kind, StructType) and all(_is_param(field.dataType) for field in kind.fields):
        return _struct_params(column, kind)
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType) and _is_param(kind.valueType):
        return _map_params(column, kind)
    raise WrongColumnType(
        f"Column for {PARAMS_NAME!r} is of type {kind.simpleString()}; give a struct such as struct(16 AS max_tokens), "
        "or a map from string."
    )


def _struct_params(column: Column, kind: StructType) -> Column:
    fields = sorted(kind.fields, key=lambda field: field.name)
    # concat of a null is null, and concat_ws passes nulls over: a null field is left out with its name.
    parts = [
        sql.concat(sql.lit(f"{_json_name(field.name)}:"), _param_text(column.getField(field.name), field.dataType))
        for field in fields
    ]
    return sql.when(column.isNotNull(), sql.concat(sql.lit("{"), sql.concat_ws(",", *parts), sql.lit("}")))


def _map_params(column: Column, kind: MapType) -> Column:
    def entry(item: Column) -> Column:
        return sql.concat(
            _json_string(item.getField("key")), sql.lit(":"), _param_text(item.getField("value"), kind.valueType)
        )

    entries = sql.array_sort(sql.map_entries(column), lambda a, b: sql.when(a["key"] < b["key"], -1).otherwise(1))
    body = sql.concat(sql.lit("{"), sql.concat_ws(",", sql.transform(entries, entry)), sql.lit("}"))
    return sql.when(column.isNotNull(), body)


def _is_param(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return isinstance(kind.elementType, StringType)
    return isinstance(kind, StringType | IntegralType | BooleanType | FloatType | DoubleType | DecimalType | NullType)


def _param_text(value: Column, kind: DataType) -> Column:
    if isinstance(kind, StringType):
        return sql.when(value.isNotNull(), _json_string(value))
    if isinstance(kind, ArrayType):
        return _json_list(value, sql.transform(value, _json_string))
    if isinstance(kind, FloatType | DoubleType | DecimalType):
        number = value.cast("double")
        return sql.when(number.isNotNull(), sql.concat(sql.lit('"'), sql.format_string("%a", number), sql.lit('"')))
    return value.cast("string")


def _json_list(value: Column, items: Column) -> Column:
    """A list of JSON texts; null where the value is (concat_ws makes an empty text of a null list)."""
    return sql.when(value.isNotNull(), sql.concat(sql.lit("["), sql.concat_ws(",", items), sql.lit("]")))


def _json_string(value: Column) -> Column:
    """A string as JSON, escaped as ``to_json`` does it; ``null`` where it is null."""
    wrapped = sql.to_json(sql.struct(value.alias("v")))  # {"v":"..."}
    return sql.when(value.isNull(), "null").otherwise(wrapped.substr(sql.lit(6), sql.length(wrapped) - 6))


def _json_name(name: str) -> str:
    return canonical_json(name)
