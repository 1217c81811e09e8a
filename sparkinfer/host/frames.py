"""What travels on the socket: one byte of kind, then Arrow IPC (requests, completions) or JSON (control). Never pickles."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from sparkinfer.errors import ProtocolError
from sparkinfer.types import Completion, FinishReason, Request, Usage

T = TypeVar("T")

#: Raised whenever a frame's meaning changes; part of the engine key, so that two versions never meet on one socket.
PROTOCOL = 1

REQUESTS = b"Q"
COMPLETIONS = b"A"
CONTROL = b"J"

_STRINGS = pa.list_(pa.string())
_REQUEST_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("values", _STRINGS),
        ("tags", pa.string()),
        ("input_hash", pa.string()),
        ("params_json", pa.string()),
        ("warnings", _STRINGS),
    ]
)
_COMPLETION_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("input_hash", pa.string()),
        ("result", pa.string()),
        ("error_code", pa.string()),
        ("error_message", pa.string()),
        ("finish_reason", pa.string()),
        ("raw_text", pa.string()),
        ("warnings", _STRINGS),
        ("prompt_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("queue_ms", pa.int64()),
        ("latency_ms", pa.int64()),
        ("attempts", pa.int32()),
        ("engine", pa.string()),
        ("inferred_at", pa.float64()),
        ("details", pa.string()),
        ("logprobs", pa.list_(pa.float64())),
    ]
)


def encode_control(message: Mapping[str, Any]) -> bytes:
    """A JSON frame: hello, ready, error, beat, stats."""
    return CONTROL + json.dumps(message).encode()


def encode_requests(requests: Sequence[Request], *, attempt: int) -> bytes:
    """Requests of one ``submit``; attempt counts the engines that these rows have seen, this one included."""
    columns: dict[str, list[Any]] = {
        "row": [r.row for r in requests],
        "values": [list(r.values) for r in requests],
        "tags": [r.tags for r in requests],
        "input_hash": [r.input_hash for r in requests],
        "params_json": [r.params_json for r in requests],
        "warnings": [list(r.warnings) for r in requests],
    }
    return REQUESTS + _encode(columns, _REQUEST_SCHEMA.with_metadata({"attempt": str(attempt)}))


def encode_completions(completions: Sequence[Completion]) -> bytes:
    """Completions for one client."""
    records = [completion_record(c) for c in completions]
    return COMPLETIONS + _encode({name: [r[name] for r in records] for name in _COMPLETION_SCHEMA.names}, _COMPLETION_SCHEMA)


def decode_control(frame: bytes) -> dict[str, Any]:
    """The inverse of :func:`encode_control`.

    Raises:
        ProtocolError: not a JSON object.
    """
    if frame[:1] != CONTROL:
        raise ProtocolError(f"Expected a control frame, not {frame[:1]!r}; client and engine must be one version of sparkinfer.")
    return _read("control", lambda: dict(json.loads(frame[1:])))


def decode_requests(frame: bytes) -> tuple[list[Request], int]:
    """The requests of a frame and their attempt.

    Raises:
        ProtocolError: not such a frame.
    """
    return _read("requests", lambda: _requests(_decode(frame)))


def decode_completions(frame: bytes) -> list[Completion]:
    """The completions of a frame.

    Raises:
        ProtocolError: not such a frame.
    """
    return _read("completions", lambda: [completion_of(record) for record in _decode(frame).to_pylist()])


def completion_record(completion: Completion) -> dict[str, Any]:
    """A completion as plain values under the wire's names; the memo on disk keeps the same."""
    return {
        "row": completion.row,
        "input_hash": completion.input_hash,
        "result": completion.result,
        "error_code": completion.error_code,
        "error_message": completion.error_message,
        "finish_reason": completion.finish_reason.value,
        "raw_text": completion.raw_text,
        "warnings": list(completion.warnings),
        "prompt_tokens": completion.usage.prompt_tokens,
        "cached_tokens": completion.usage.cached_tokens,
        "completion_tokens": completion.usage.completion_tokens,
        "queue_ms": completion.queue_ms,
        "latency_ms": completion.latency_ms,
        "attempts": completion.attempts,
        "engine": completion.engine,
        "inferred_at": completion.inferred_at,
        "details": json.dumps(dict(completion.details)),
        "logprobs": None if completion.logprobs is None else list(completion.logprobs),
    }


def completion_of(record: Mapping[str, Any]) -> Completion:
    """The inverse of :func:`completion_record`."""
    values = dict(record)
    usage = Usage(
        prompt_tokens=values.pop("prompt_tokens"),
        cached_tokens=values.pop("cached_tokens"),
        completion_tokens=values.pop("completion_tokens"),
    )
    values["finish_reason"] = FinishReason(values["finish_reason"])
    values["warnings"] = tuple(values["warnings"])
    values["details"] = json.loads(values["details"])
    values["logprobs"] = None if values["logprobs"] is None else tuple(values["logprobs"])
    return Completion(usage=usage, **values)


def _requests(table: pa.Table) -> tuple[list[Request], int]:
    attempt = int(table.schema.metadata[b"attempt"])
    requests = [
        Request(
            row=record["row"],
            values=tuple(record["values"]),
            tags=record["tags"],
            input_hash=record["input_hash"],
            params_json=record["params_json"],
            warnings=tuple(record["warnings"]),
        )
        for record in table.to_pylist()
    ]
    return requests, attempt


def _encode(columns: dict[str, list[Any]], schema: pa.Schema) -> bytes:
    try:
        batch = pa.record_batch(columns, schema=schema)
    except UnicodeEncodeError:  # lone surrogates have no UTF-8
        batch = pa.record_batch({name: _encodable(values) for name, values in columns.items()}, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    return value


def _decode(frame: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(memoryview(frame)[1:])) as reader:
        return reader.read_all()


def _read(what: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise ProtocolError(
            f"A frame of {what} cannot be read ({error}); client and engine must be one version of sparkinfer."
        ) from error
