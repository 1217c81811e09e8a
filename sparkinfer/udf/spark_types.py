"""The result struct as a Spark type, built from the plain data of :mod:`sparkinfer.schema`."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    DataType,
    FloatType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sparkinfer.schema import result_fields

_SPARK_TYPES: dict[str, DataType] = {
    "STRING": StringType(),
    "INT": IntegerType(),
    "TIMESTAMP": TimestampType(),
    "ARRAY<STRING>": ArrayType(StringType()),
    "ARRAY<FLOAT>": ArrayType(FloatType()),
    "MAP<STRING, STRING>": MapType(StringType(), StringType()),
}


def result_struct_type(*, logprobs: bool) -> StructType:
    """The struct of a UDF with or without log-probabilities; its fields may be null, the struct itself never is."""
    return StructType([StructField(field.name, _SPARK_TYPES[field.ddl]) for field in result_fields(logprobs=logprobs)])
