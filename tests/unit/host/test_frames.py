from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from sparkinfer.errors import ProtocolError
from sparkinfer.host import frames
from sparkinfer.types import Completion, FinishReason, Request, Usage

REQUESTS = [
    Request(row=7, values=("a", None, "é\x00😀", ""), tags="s0ss", input_hash="h1", params_json='{"max_tokens":3}'),
    Request(row=2**40, values=(), tags="", input_hash="h2", warnings=("INVALID_UTF8",)),
]
COMPLETIONS = [
    Completion(
        row=7,
        input_hash="h1",
        result="good",
        finish_reason=FinishReason.LENGTH,
        raw_text="good ",
        warnings=("A", "B"),
        usage=Usage(prompt_tokens=11, cached_tokens=4, completion_tokens=2),
        queue_ms=1,
        latency_ms=2,
        attempts=3,
        engine="fake",
        inferred_at=1.25,
        details={"k": "v"},
        logprobs=(-0.125, 0.0),
    ),
    Completion(row=8, input_hash="h2", error_code="X", error_message="why", finish_reason=FinishReason.ERROR),
]


def test_requests_arrive_as_they_were_sent() -> None:
    assert frames.decode_requests(frames.encode_requests(REQUESTS, attempt=2)) == (REQUESTS, 2)


def test_completions_arrive_as_they_were_sent() -> None:
    assert frames.decode_completions(frames.encode_completions(COMPLETIONS)) == COMPLETIONS


def test_a_frame_may_be_empty() -> None:
    assert frames.decode_completions(frames.encode_completions([])) == []
    assert frames.decode_requests(frames.encode_requests([], attempt=1)) == ([], 1)


def test_lone_surrogates_become_the_replacement_character() -> None:
    frame = frames.encode_completions([Completion(row=1, input_hash="h", result="ok\ud83d!", raw_text="\ud83d\ude00")])
    (completion,) = frames.decode_completions(frame)
    assert completion.result == "ok\ufffd!"
    assert completion.raw_text == "😀"


@pytest.mark.parametrize("frame", [b"", b"Q", b"Qgarbage", b"A\x00\x00", b"J{", b"J[1]", b"?"])
def test_a_frame_that_cannot_be_read_is_a_protocol_error(frame: bytes) -> None:
    decode = {b"A": frames.decode_completions, b"Q": frames.decode_requests}.get(frame[:1], frames.decode_control)
    with pytest.raises(ProtocolError):
        decode(frame)


def test_the_wire_does_not_need_pandas() -> None:
    code = (
        "import sys; from sparkinfer.host import frames; from sparkinfer.types import Completion\n"
        "c = [Completion(row=1, input_hash='h', logprobs=(0.5,))]\n"
        "assert frames.decode_completions(frames.encode_completions(c)) == c\n"
        "sys.exit(any(name in sys.modules for name in ('pandas', 'torch', 'transformers', 'pyspark', 'mlflow')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_frame_is_not_blamed_for_want_of_memory() -> None:
    def read() -> None:
        raise pa.ArrowMemoryError("malloc of size 512 failed")

    with pytest.raises(MemoryError):
        frames._read("requests", read)
