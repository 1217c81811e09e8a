"""SQL forms of :mod:`sparkinfer.hashing`: the keys of inputs and rows without a Python UDF. A test holds both equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sparkinfer.errors import MissingColumn, WrongColumnType
from sparkinfer.hashing import NULL_TAG, PARAMS_NAME, PARAMS_TAG
from sparkinfer.udf.canonical_sql import params_text, value_text


def input_hash_column(
    schema: StructType, *, names: Sequence[str], columns: Mapping[str, str], params: str | None = None
) -> Column:
    """The input hash of each row.

    Args:
        schema: of the source.
        names: the UDF's arguments in order.
        columns: argument -> source column; an argument that is not there is its own column.
        params: source column with per-row parameters.

    Raises:
        MissingColumn: a column that the source does not have.
        WrongColumnType: a column without an exact text.
    """
    fields = []
    for name in names:
        source = columns.get(name, name)
        kind = column_type(schema, source, wanted_by=f"the prompt's {{{name}}}")
        fields.append(_field(name, *value_text(source, quoted(source), kind)))
    if params is not None:
        kind = column_type(schema, params, wanted_by="params")
        fields.append(_field(PARAMS_NAME, PARAMS_TAG, params_text(quoted(params), kind)))
    return sql.sha2(sql.concat(*fields), 256)


def row_key_column(schema: StructType, *, key: Sequence[str]) -> Column:
    """The key of each row: the same format over the key columns, in this order.

    Beside the types of inputs it takes timestamps (as microseconds), floats (as their exact text), bytes, and nested values
    (as JSON): a row without a key of its own is known by all its columns.

    Raises:
        MissingColumn: a column that the source does not have.
    """
    fields = []
    for name in key:
        kind = column_type(schema, name, wanted_by="key")
        fields.append(_field(name, *_key_text(name, quoted(name), kind)))
    return sql.sha2(sql.concat(*fields), 256)


def column_type(schema: StructType, name: str, *, wanted_by: str) -> DataType:
    """The type of a source column, found as Spark finds it (without regard to case where only one fits).

    Raises:
        MissingColumn: no such column.
    """
    exact = [field for field in schema.fields if field.name == name]
    found = exact or [field for field in schema.fields if field.name.lower() == name.lower()]
    if len(found) != 1:
        have = ", ".join(field.name for field in schema.fields)
        raise MissingColumn(f"The source has no column {name!r} for {wanted_by}; it has: {have}.")
    return found[0].dataType


def quoted(name: str) -> Column:
    """The column of exactly this name, dots and all."""
    return sql.col("`" + name.replace("`", "``") + "`")


def _field(name: str, tag: str, text: Column) -> Column:
    """One field as bytes; ``text`` null gives the null tag."""
    encoded = name.encode()
    prefix = f"{len(encoded)}:{name}"
    data = text.cast("binary")
    filled = sql.concat(
        sql.lit(prefix + tag).cast("binary"),
        sql.octet_length(data).cast("string").cast("binary"),
        sql.lit(":").cast("binary"),
        data,
    )
    return sql.when(text.isNull(), sql.lit(prefix + NULL_TAG).cast("binary")).otherwise(filled)


def _key_text(name: str, column: Column, kind: DataType) -> tuple[str, Column]:
    if isinstance(kind, TimestampType):
        return "t", sql.unix_micros(column).cast("string")
    if isinstance(kind, TimestampNTZType):
        return "t", column.cast("string")
    if isinstance(kind, FloatType | DoubleType):
        return "f", sql.when(column.isNotNull(), sql.format_string("%a", column.cast("double")))
    if isinstance(kind, BinaryType):
        return "x", column
    try:
        return value_text(name, column, kind)
    except WrongColumnType:
        wrapped = sql.to_json(sql.struct(column.alias("v")), {"timeZone": "UTC", "ignoreNullFields": "false"})
        return "j", sql.when(column.isNotNull(), wrapped)
