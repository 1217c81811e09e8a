"""The worker function for Spark 3.5 and 4.0, which have no Arrow UDFs: pandas at the border, Arrow inside.

pandas costs two things there. Whole numbers with nulls arrive as floats, which have no exact text: such a column is refused
with "cast it to string". And strings that are no UTF-8 fail in pyspark before this code sees them.
"""

# pyspark reads the type hints of the function below to tell the kind of UDF, and finds pd and Iterator in this module.
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa

from sparkinfer.udf.worker import WorkerTask

_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def pandas_function(task: WorkerTask) -> Callable[..., Any]:
    """What runs in the workers."""
    if task.is_struct:

        def llm_struct(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
            for array in task.answers(map(_to_arrow, batches)):
                yield pa.Table.from_struct_array(array).to_pandas(timestamp_as_object=False, maps_as_pydicts="strict")

        return llm_struct

    def llm_udf(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for array in task.answers(map(_to_arrow, batches)):
            yield pd.Series(array.to_pylist(), dtype=object)  # object: a column of nulls alone would become floats

    return llm_udf


def _to_arrow(batch: Any) -> pa.Array | tuple[pa.Array, ...]:
    if isinstance(batch, tuple):
        return tuple(column_to_arrow(column) for column in batch)
    return column_to_arrow(batch)


def column_to_arrow(column: pd.Series | pd.DataFrame) -> pa.Array:
    """A pandas column as pyspark makes it: a DataFrame for a struct, dicts in arrays for an array of structs."""
    if isinstance(column, pd.DataFrame):
        return pa.StructArray.from_pandas(
            pa.Table.from_pandas(column, preserve_index=False).to_struct_array().combine_chunks()
        )
    if pd.api.types.is_float_dtype(column.dtype) and column.isna().all():
        return pa.nulls(len(column))
    values = [_plain(value) for value in column]
    array = pa.array(values, from_pandas=True)
    return array.cast(_MESSAGES) if pa.types.is_list(array.type) and pa.types.is_null(array.type.value_type) else array


def _plain(value: Any) -> Any:
    """Arrays of dicts or Rows as lists of dicts; everything else as it is."""
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return [_plain(item) for item in value.tolist()] if value.ndim else value.item()
    if hasattr(value, "asDict"):
        return value.asDict()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
