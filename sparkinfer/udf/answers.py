"""Completions as Arrow arrays: the whole struct, or the answer alone. Nothing a model writes can break the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from sparkinfer.config.specs import EngineSpec, TaskSpec
from sparkinfer.errors import RowError, SparkInferError, by_code
from sparkinfer.host.columns import arrow_safe, column
from sparkinfer.schema import result_fields
from sparkinfer.types import Completion

#: Warning of a row whose answer held lone surrogates; each stands as U+FFFD in the result.
INVALID_OUTPUT = "INVALID_OUTPUT_TEXT"

_ARROW_TYPES = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "ARRAY<FLOAT>": pa.list_(pa.float32()),
    "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
}


class AnswerWriter:
    """Turns completions, in row order, into one Arrow array.

    Args:
        engine: names the model in each row.
        task: gives the config hash of each row.
        is_struct: the whole struct; else the answer alone, and a failed row raises.
        logprobs: the struct has its last field.
    """

    def __init__(self, engine: EngineSpec, task: TaskSpec, *, is_struct: bool, logprobs: bool) -> None:
        self._is_struct = is_struct
        self._fields = result_fields(logprobs=logprobs)
        self._constant = {
            "model_name": engine.model.name,
            "model_version": engine.model.version,
            "config_hash": task.config_hash,
        }

    def write(self, completions: Sequence[Completion]) -> pa.Array:
        """The array of these rows.

        Raises:
            RowError: a failed row where the column is the answer alone.
        """
        if not self._is_struct:
            for completion in completions:
                if not completion.ok:
                    raise row_error(completion)
            return column(pa.string(), [c.result for c in completions])
        arrays = [self._column(field.name, field.ddl, completions) for field in self._fields]
        return pa.StructArray.from_arrays(arrays, names=[field.name for field in self._fields])

    def _column(self, name: str, ddl: str, completions: Sequence[Completion]) -> pa.Array:
        kind = _ARROW_TYPES[ddl]
        if name in self._constant:
            return column(kind, [self._constant[name]] * len(completions))
        read = _READERS[name]
        return column(kind, [read(completion) for completion in completions])


def row_error(completion: Completion) -> SparkInferError:
    """The exception of a failed row, with the hash that finds it again and no text of the row."""
    kind = by_code(completion.error_code or "")
    message = f"{completion.error_message} (row with input_hash {completion.input_hash}; fail_on_error=False keeps the others)"
    if kind is SparkInferError:
        return RowError(f"{completion.error_code}: {message}")
    return kind(message)


def _warnings(completion: Completion) -> tuple[str, ...]:
    is_broken = arrow_safe(completion.result) != completion.result
    return (*completion.warnings, INVALID_OUTPUT) if is_broken else completion.warnings


def _inferred_at(completion: Completion) -> int | None:
    return round(completion.inferred_at * 1_000_000) if completion.inferred_at else None


#: Field of the struct -> its value in a completion; maps as pairs, times in microseconds.
_READERS: dict[str, Callable[[Completion], Any]] = {
    "result": lambda c: c.result,
    "errorMessage": lambda c: c.error_message,
    "errorCode": lambda c: c.error_code,
    "finish_reason": lambda c: c.finish_reason.value,
    "raw_text": lambda c: c.raw_text,
    "warnings": _warnings,
    "prompt_tokens": lambda c: c.usage.prompt_tokens,
    "cached_tokens": lambda c: c.usage.cached_tokens,
    "completion_tokens": lambda c: c.usage.completion_tokens,
    "queue_ms": lambda c: c.queue_ms,
    "latency_ms": lambda c: c.latency_ms,
    "attempts": lambda c: c.attempts,
    "engine": lambda c: c.engine,
    "input_hash": lambda c: c.input_hash,
    "inferred_at": _inferred_at,
    "details": lambda c: list(c.details.items()),
    "logprobs": lambda c: c.logprobs,
}
