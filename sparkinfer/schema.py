"""The result struct's names and types as plain data; udf/ builds the Spark types, host/ the Arrow ones."""

from __future__ import annotations

from typing import NamedTuple


class ResultField(NamedTuple):
    """One field of the result struct.

    ``name`` is its name in a column expression's struct, ``column`` its name in a result table, ``ddl`` its Spark SQL type.
    """

    name: str
    column: str
    ddl: str


#: In the order of the public struct. ``result`` is of the UDF's own type T; STRING here.
RESULT_FIELDS: tuple[ResultField, ...] = (
    ResultField("result", "result", "STRING"),
    ResultField("errorMessage", "error_message", "STRING"),
    ResultField("errorCode", "error_code", "STRING"),
    ResultField("finish_reason", "finish_reason", "STRING"),
    ResultField("raw_text", "raw_text", "STRING"),
    ResultField("warnings", "warnings", "ARRAY<STRING>"),
    ResultField("prompt_tokens", "prompt_tokens", "INT"),
    ResultField("cached_tokens", "cached_tokens", "INT"),
    ResultField("completion_tokens", "completion_tokens", "INT"),
    ResultField("queue_ms", "queue_ms", "INT"),
    ResultField("latency_ms", "latency_ms", "INT"),
    ResultField("attempts", "attempts", "INT"),
    ResultField("model_name", "model_name", "STRING"),
    ResultField("model_version", "model_version", "STRING"),
    ResultField("engine", "engine", "STRING"),
    ResultField("input_hash", "input_hash", "STRING"),
    ResultField("config_hash", "config_hash", "STRING"),
    ResultField("inferred_at", "inferred_at", "TIMESTAMP"),
    ResultField("details", "details", "MAP<STRING, STRING>"),
)

#: Last field, only where log-probabilities were asked for.
LOGPROBS_FIELD = ResultField("logprobs", "logprobs", "ARRAY<FLOAT>")

#: Columns that a result table has beside the struct's, the keys and the kept ones.
JOB_COLUMNS: tuple[tuple[str, str], ...] = (("row_key", "STRING"), ("run_id", "STRING"), ("bucket", "INT"))


def result_fields(*, logprobs: bool) -> tuple[ResultField, ...]:
    """The struct's fields for a UDF with or without log-probabilities."""
    return (*RESULT_FIELDS, LOGPROBS_FIELD) if logprobs else RESULT_FIELDS


def result_ddl(*, logprobs: bool = False) -> str:
    """The struct as a Spark DDL string."""
    return "STRUCT<" + ", ".join(f"{f.name}: {f.ddl}" for f in result_fields(logprobs=logprobs)) + ">"


def reserved_columns() -> frozenset[str]:
    """Names that a kept column may not have, lower case."""
    return frozenset(f.column for f in (*RESULT_FIELDS, LOGPROBS_FIELD) if f.column != "result") | {
        c for c, _ in JOB_COLUMNS
    }
