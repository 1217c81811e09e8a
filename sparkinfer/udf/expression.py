"""The pyspark UDF of a recipe: an Arrow iterator UDF on Spark 4.1 and later, wrapped in pandas before."""

# pyspark reads the type hints of the function below to tell the kind of UDF, and finds pa and Iterator in this module.
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql.types import DataType, StringType

from sparkinfer.udf.spark_types import result_struct_type
from sparkinfer.udf.worker import WorkerTask

if TYPE_CHECKING:
    from pyspark.sql import Column

    from sparkinfer.udf.resolve import ResolvedUdf

#: SQL_SCALAR_ARROW_ITER_UDF and SQL_SCALAR_PANDAS_ITER_UDF of pyspark.util.PythonEvalType.
ARROW_ITERATOR, PANDAS_ITERATOR = 251, 204


def apply(
    resolved: ResolvedUdf,
    columns: Sequence[Column | str],
    *,
    params: Column | str | None = None,
    deterministic: bool = True,
    reads_all: bool = False,
) -> Column:
    """The UDF called on columns; ``params`` is its last argument where there is one."""
    function = worker_function(resolved, reads_all=reads_all)
    udf = _make_udf(function, return_type(resolved))
    if not deterministic:
        udf = udf.asNondeterministic()
    return udf(*columns) if params is None else udf(*columns, params)


def worker_function(resolved: ResolvedUdf, *, reads_all: bool) -> Callable[..., Any]:
    """What runs in the workers: a closure over a few strings, pickled anew for each expression."""
    task = WorkerTask(
        engine_json=resolved.engine.to_json(),
        task_json=resolved.task.to_json(),
        is_struct=resolved.is_struct,
        has_logprobs=resolved.logprobs is not None,
        engine_mode=resolved.engine_mode,
        reads_all=reads_all,
    )
    if not has_arrow_udf():
        from sparkinfer.udf.pandas_expression import pandas_function

        return pandas_function(task)

    def llm_udf(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return task.answers(batches)

    return llm_udf


def return_type(resolved: ResolvedUdf) -> DataType:
    """The Spark type: STRING, or the struct of :mod:`sparkinfer.schema`."""
    return result_struct_type(logprobs=resolved.logprobs is not None) if resolved.is_struct else StringType()


def eval_type() -> int:
    """Number that pyspark has for the kind of UDF that this Spark gets."""
    return ARROW_ITERATOR if has_arrow_udf() else PANDAS_ITERATOR


def has_arrow_udf() -> bool:
    """Whether this pyspark has Arrow UDFs (4.1 and later)."""
    major, minor = (int(part) for part in pyspark.__version__.split(".")[:2])
    return (major, minor) >= (4, 1)


def _make_udf(function: Callable[..., Any], kind: DataType) -> Any:
    functions: Any = import_module("pyspark.sql.functions")  # which of the two it has differs by version
    return functions.arrow_udf(function, kind) if has_arrow_udf() else functions.pandas_udf(function, kind)
