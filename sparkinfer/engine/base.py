"""The engine's contract: ids in, ids out. It knows no text, rows, Spark or sockets, and this file no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sparkinfer.types import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One prompt as token ids, ready to run.

    Attributes:
        request_id: unique within the engine's life.
        prompt_ids: at least one id; prompt + max_tokens fits ``EngineInfo.max_model_len`` (the text layer saw to it).
        sampling: max_tokens, temperature and so on; stop *strings* are not the engine's business.
        stop_ids: ids that end the completion (they are not part of the answer).
        choices: token ids of each closed choice, or None; then only one of them can come out.
        noise_key: (seed, input_hash) mixed to 64 bits; with the position it is the counter of the sampler's noise.
        task: small number of the task (template and sampling shape); requests of one bucket share it.
        priority: higher first.
        deadline: monotonic seconds by which it should be done, or None.
        arrival: monotonic seconds.
    """

    request_id: int
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    choices: tuple[tuple[int, ...], ...] | None = None
    noise_key: int = 0
    task: int = 0
    priority: int = 0
    deadline: float | None = None
    arrival: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutput:
    """What one step gave one request: new ids, and how it ended if it did.

    ``token_ids`` hold no stop id. ``error`` is (code, message) where the request failed; then finish_reason is ERROR.
    ``cached_tokens`` is final with the first output.
    """

    request_id: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] | None = None
    finish_reason: FinishReason | None = None
    error: tuple[str, str] | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What runs. ``label`` goes into each row's ``engine`` field, e.g. ``paged/cpu-numba/fp32``; of ``vocab_size`` None knows all ids."""

    label: str
    max_model_len: int
    device: str
    dtype: str
    weights_bytes: int = 0
    kv_bytes: int = 0
    vocab_size: int | None = None


class Engine(Protocol):
    """Continuous batching over one model. Not thread-safe: one thread calls it."""

    info: EngineInfo

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Never blocks, never raises for a single request's sake: its failure comes out of step()."""

    def abort(self, request_id: int) -> None:
        """Drop a request (client gone); no output follows. Unknown ids are ignored."""

    def finish(self, request_id: int) -> None:
        """End a request whose text hit a stop string; no output follows. Unknown ids are ignored."""

    def step(self) -> list[TokenOutput]:
        """Run one batch; outputs of requests that got tokens, ended or failed. May return [] while work is left
        (a batch still being filled)."""

    def has_work(self) -> bool:
        """Whether a waiting or running request is left."""

    def running_ids(self) -> list[int]:
        """Requests of the batch being run: the suspects if the process dies now."""

    def stats(self) -> dict[str, float]:
        """Counters: requests, steps, prompt_tokens, cached_tokens, completion_tokens, preemptions, occupancy, blocks_free ..."""

    def close(self) -> None:
        """Give memory back; the engine is unusable afterwards."""
