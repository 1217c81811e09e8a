"""A deterministic engine without weights: the public stand-in for tests, dry runs and fault injection.

It speaks the byte tokenizer's ids (byte b is id b + 3; 0 pad, 1 bos, 2 eos) and answers every prompt with a short text that
depends on the prompt alone. Options come with the model URI, ``fake:?log=/path&step_ms=5``:

    log=PATH        append a JSON line per load and per request really executed
    answer=TEXT     this answer for every prompt (default: "answer-" + 8 hex digits of the prompt's SHA-256)
    context=N       max_model_len (default 4096)
    step_ms=N       every step takes so long
    load_ms=N       loading takes so long;  load_mb=N holds so much memory;  load_error=TEXT  loading raises
    garbage=TEXT    a prompt that holds TEXT is answered with bytes that are no UTF-8, and a NUL

and those of :mod:`sparkinfer.engine.fake_faults` (crash, hang, slow, oom, fail, flaky ...).
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import time
from collections import OrderedDict
from urllib.parse import parse_qsl

from sparkinfer.config.settings import EngineSettings
from sparkinfer.engine.base import EngineInfo, EngineRequest, TokenOutput
from sparkinfer.engine.buckets import OLDEST_EVERY
from sparkinfer.engine.fake_faults import Faults
from sparkinfer.errors import EngineStartFailed
from sparkinfer.types import FinishReason

FIRST_BYTE_ID = 3


class FakeEngine:
    """See the module's docstring; implements :class:`sparkinfer.engine.base.Engine`."""

    def __init__(self, location: str, settings: EngineSettings | None = None) -> None:
        self.options = dict(parse_qsl(location.partition("?")[2], keep_blank_values=True))
        self._faults = Faults(self.options)
        self._settings = settings or EngineSettings()
        self._queue: OrderedDict[int, EngineRequest] = OrderedDict()
        self._running: list[int] = []
        self._counters = {"requests": 0, "steps": 0, "prompt_tokens": 0, "completion_tokens": 0}
        time.sleep(float(self.options.get("load_ms", 0)) / 1000)
        self._faults.while_loading()
        if "load_error" in self.options:
            raise EngineStartFailed(f"{self.options['load_error']} (asked for by load_error= of the fake model).")
        self._ballast = os.urandom(int(self.options.get("load_mb", 0)) * 1024 * 1024)
        self.info = EngineInfo(
            label="fake",
            max_model_len=int(self.options.get("context", 4096)),
            device="cpu",
            dtype="none",
            weights_bytes=len(self._ballast),
        )
        self._log({"event": "load"})

    def add(self, request: EngineRequest) -> None:
        """Queue a request."""
        self._queue[request.request_id] = request

    def abort(self, request_id: int) -> None:
        """Drop a request."""
        self._queue.pop(request_id, None)

    finish = abort

    def step(self) -> list[TokenOutput]:
        """Answer the next batch whole, in one step: highest priority first, but the oldest has its turn too, as in the real one."""
        batch = self._next_batch()
        self._running = [r.request_id for r in batch]
        self._counters["steps"] += 1
        time.sleep(float(self.options.get("step_ms", 0)) / 1000)
        outputs = [self._answer(request) for request in batch]
        for request in batch:
            del self._queue[request.request_id]
        self._running = []
        return outputs

    def has_work(self) -> bool:
        """Whether a request waits."""
        return bool(self._queue)

    def running_ids(self) -> list[int]:
        """The batch being answered; between steps the next one."""
        return list(self._running) or [request.request_id for request in self._next_batch()]

    def stats(self) -> dict[str, float]:
        """Counters since the load."""
        return dict(self._counters)

    def close(self) -> None:
        """Let the ballast go."""
        self._ballast = b""

    def _next_batch(self) -> list[EngineRequest]:
        size = self._settings.max_batch_size
        batch = heapq.nsmallest(size, self._queue.values(), key=_rank)
        if batch and self._counters["steps"] % OLDEST_EVERY == OLDEST_EVERY - 1:
            oldest = next(iter(self._queue.values()))
            batch = [oldest, *(request for request in batch if request is not oldest)][:size]
        return batch

    def _answer(self, request: EngineRequest) -> TokenOutput:
        prompt = bytes(i - FIRST_BYTE_ID for i in request.prompt_ids if i >= FIRST_BYTE_ID)
        self._log({"event": "request", "prompt": prompt.decode("utf-8", "replace"), "noise_key": request.noise_key})
        self._counters["requests"] += 1
        self._counters["prompt_tokens"] += len(request.prompt_ids)
        error = self._faults.on(prompt)
        if error is not None:
            return TokenOutput(request_id=request.request_id, finish_reason=FinishReason.ERROR, error=error)
        ids = self._reply_ids(request, prompt)
        kept = ids[: request.sampling.max_tokens] if request.choices is None else ids
        self._counters["completion_tokens"] += len(kept)
        return TokenOutput(
            request_id=request.request_id,
            token_ids=tuple(kept),
            logprobs=tuple(0.0 for _ in kept) if request.sampling.logprobs is not None else None,
            finish_reason=FinishReason.STOP if len(kept) == len(ids) else FinishReason.LENGTH,
        )

    def _reply_ids(self, request: EngineRequest, prompt: bytes) -> list[int]:
        noise = b"" if request.sampling.is_greedy else str(request.noise_key).encode()
        digest = hashlib.sha256(prompt + noise).hexdigest()
        if request.choices is not None:
            return list(request.choices[int(digest, 16) % len(request.choices)])
        if self._faults.are_asked("garbage", prompt):
            return [b + FIRST_BYTE_ID for b in b"ok\xed\xa0\xbd\x00\xf0\x9f\x98"]
        reply = self.options.get("answer") or f"answer-{digest[:8]}"
        return [b + FIRST_BYTE_ID for b in reply.encode()]

    def _log(self, event: dict[str, object]) -> None:
        path = self.options.get("log")
        if path:
            line = json.dumps({**event, "pid": os.getpid(), "time": time.time()}) + "\n"
            with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - one O_APPEND write a line
                file.write(line)


def _rank(request: EngineRequest) -> tuple[int, float, int]:
    return (-request.priority, float("inf") if request.deadline is None else request.deadline, request.request_id)
