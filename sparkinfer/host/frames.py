"""What travels on the socket: one byte of kind, then Arrow IPC (requests, completions) or JSON (control). Never pickles."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from sparkinfer.errors import ProtocolError
from sparkinfer.host import columns
from sparkinfer.types import Completion, FinishReason, Request, Usage

T = TypeVar("T")

#: Raised whenever a frame's meaning changes; part of the engine key, so that two versions never meet on one socket.
PROTOCOL = 1

REQUESTS = b"Q"
COMPLETIONS = b"A"
CONTROL = b"J"

_TEXT, _TEXTS = pa.large_string(), pa.large_list(pa.large_string())

_REQUEST_COLUMNS = {
    "row": pa.int64(),
    "values": _TEXTS,
    "tags": _TEXT,
    "input_hash": _TEXT,
    "params_json": _TEXT,
    "warnings": _TEXTS,
}
_COMPLETION_COLUMNS = {
    "row": pa.int64(),
    "input_hash": _TEXT,
    "result": _TEXT,
    "error_code": _TEXT,
    "error_message": _TEXT,
    "finish_reason": _TEXT,
    "raw_text": _TEXT,
    "warnings": _TEXTS,
    "prompt_tokens": pa.int64(),
    "cached_tokens": pa.int64(),
    "completion_tokens": pa.int64(),
    "queue_ms": pa.int64(),
    "latency_ms": pa.int64(),
    "attempts": pa.int64(),
    "engine": _TEXT,
    "inferred_at": pa.float64(),
    "details": _TEXT,
    "logprobs": pa.large_list(pa.float64()),
}


def encode_control(message: Mapping[str, Any]) -> bytes:
    """A JSON frame: hello, ready, error, beat, stats."""
    return CONTROL + json.dumps(message).encode()


def encode_requests(requests: Sequence[Request], *, attempt: int) -> bytes:
    """Requests of one ``submit``; attempt counts the engines that these rows have seen, this one included."""
    arrays = {
        name: columns.column(kind, [getattr(request, name) for request in requests])
        for name, kind in _REQUEST_COLUMNS.items()
    }
    return REQUESTS + _encode(arrays, {"attempt": str(attempt)})


def encode_completions(completions: Sequence[Completion]) -> bytes:
    """Completions for one client."""
    records = [completion_record(c) for c in completions]
    arrays = {name: columns.column(kind, [r[name] for r in records]) for name, kind in _COMPLETION_COLUMNS.items()}
    return COMPLETIONS + _encode(arrays, {})


def decode_control(frame: bytes) -> dict[str, Any]:
    """The inverse of :func:`encode_control`.

    Raises:
        ProtocolError: not a JSON object.
    """
    if frame[:1] != CONTROL:
        raise ProtocolError(
            f"Expected a control frame, not {frame[:1]!r}; client and engine must be one version of sparkinfer."
        )
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


def _encode(arrays: Mapping[str, pa.Array], metadata: Mapping[str, str]) -> bytes:
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays), metadata=dict(metadata) or None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _decode(frame: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(memoryview(frame)[1:])) as reader:
        return reader.read_all()


def _read(what: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except MemoryError:  # one of Arrow's errors too, and no fault of the frame
        raise
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise ProtocolError(
            f"A frame of {what} cannot be read ({error}); client and engine must be one version of sparkinfer."
        ) from error
