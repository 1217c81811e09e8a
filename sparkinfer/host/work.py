"""One distinct input on its way through the engine process, and who waits for it."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, field
from typing import Protocol

from sparkinfer.config.specs import TaskSpec
from sparkinfer.errors import InvalidParams, SparkInferError
from sparkinfer.host.journal import DIGEST
from sparkinfer.host.progress import Tally
from sparkinfer.text.task import OutputText, Prompt, TextTask
from sparkinfer.types import Completion, FinishReason, Request, SamplingParams


class Outlet(Protocol):
    """Where a client's completions go. Neither call blocks."""

    def deliver(self, completions: list[Completion]) -> None:
        """Hand completions over, in any order."""

    def fail(self, error: SparkInferError) -> None:
        """Tell that nothing more will come, and why."""


@dataclass(slots=True, eq=False)
class Session:
    """One client with its task."""

    task: TaskSpec
    text: TextTask
    number: int
    config: bytes
    outlet: Outlet
    tally: Tally


@dataclass(frozen=True, slots=True)
class Waiter:
    """A row of a client that wants this work's answer."""

    session: Session
    row: int


@dataclass(slots=True, eq=False)
class Work:
    """One distinct input.

    Attributes:
        request_id: its number in the engine; another one for each attempt.
        key: what makes two inputs equal: input hash and config hash.
        attempt: counts engines and attempts that the row has seen.
        is_shared: whether equal inputs may share the answer (not where each draw is to be a new one).
        began: monotonic seconds when the engine first ran it.
        retries: attempts that failed for a reason that may pass.
    """

    request_id: int
    key: bytes
    session: Session
    request: Request
    attempt: int
    is_shared: bool
    waiters: list[Waiter]
    arrival: float = field(default_factory=time.monotonic)
    began: float | None = None
    prompt: Prompt | None = None
    stream: OutputText | None = None
    cached_tokens: int = 0
    logprobs: list[float] = field(default_factory=list)
    is_done: bool = False
    retries: int = 0

    def begin_again(self, request_id: int) -> None:
        """Forget what an attempt that failed gave; the next one is another request to the engine."""
        assert self.prompt is not None, "only prepared work is tried again: this is a bug"
        self.request_id = request_id
        self.retries += 1
        self.attempt += 1
        self.stream = self.session.text.stream(self.prompt)
        self.cached_tokens = 0
        self.logprobs = []
        self.is_done = False

    @property
    def digest(self) -> bytes:
        """The key, short: what journal and suspects hold."""
        return self.key[:DIGEST]

    def failed(self, code: str, message: str) -> Completion:
        """Its completion where it has no answer."""
        return Completion(
            row=self.request.row,
            input_hash=self.request.input_hash,
            error_code=code,
            error_message=message,
            finish_reason=FinishReason.ERROR,
            warnings=self.request.warnings if self.prompt is None else self.prompt.warnings,
        )


def config_key(task: TaskSpec) -> bytes:
    """What of a task can change an answer."""
    return (task.config_hash or hashlib.sha256(task.to_json().encode()).hexdigest()).encode()


def work_key(config: bytes, input_hash: str) -> bytes:
    """SHA-256 of input hash and config hash, 32 bytes."""
    return hashlib.sha256(config + b"\0" + input_hash.encode()).digest()


def is_repeatable(task: TaskSpec, request: Request) -> bool:
    """Whether the same request always has the same answer, so that one may be given for another."""
    try:
        return task.sampling.merged(request.params_json).is_deterministic
    except InvalidParams:
        return True  # it fails, and the same way each time


def noise_key(sampling: SamplingParams, input_hash: str) -> int:
    """64 bits mixed of seed and input hash; drawn anew where there is no seed."""
    if sampling.seed is None:
        return int.from_bytes(os.urandom(8), "little")
    return int.from_bytes(hashlib.sha256(f"{sampling.seed}:{input_hash}".encode()).digest()[:8], "little")
