"""Requests, whole runs and the expected tokens for tests of the engine over the fake runner."""

from __future__ import annotations

from collections.abc import Iterable

from sparkinfer.config.settings import EngineSettings
from sparkinfer.engine.base import EngineRequest, TokenOutput
from sparkinfer.engine.engine import PackedEngine
from sparkinfer.engine.fake_runner import FakeRunner
from sparkinfer.engine.sequence import Sequence
from sparkinfer.types import FinishReason, SamplingParams

Answer = tuple[tuple[int, ...], FinishReason | None]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def request(
    request_id: int,
    prompt: Iterable[int] = (1, 2, 3),
    *,
    max_tokens: int = 4,
    stop_ids: Iterable[int] = (),
    choices: tuple[tuple[int, ...], ...] | None = None,
    logprobs: int | None = None,
    **fields: object,
) -> EngineRequest:
    """A greedy request."""
    return EngineRequest(
        request_id=request_id,
        prompt_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, logprobs=logprobs),
        stop_ids=frozenset(stop_ids),
        choices=choices,
        **fields,  # type: ignore[arg-type]
    )


def engine_of(
    num_blocks: int = 64, *, block_size: int = 4, clock: Clock | None = None, **options: object
) -> PackedEngine:
    """A packed engine over a verifying fake runner; options are those of the runner, the others settings."""
    of_runner = {
        k: options.pop(k)
        for k in ("vocabulary", "max_model_len", "memory_tokens", "poison_id", "nan_id")
        if k in options
    }
    runner = FakeRunner(num_blocks, block_size=block_size, **of_runner)  # type: ignore[arg-type]
    settings = EngineSettings(block_size=block_size, **{"batch_timeout_ms": 0, **options})  # type: ignore[arg-type]
    return PackedEngine(runner, settings, clock=clock or Clock())


def runner_of(engine: PackedEngine) -> FakeRunner:
    """The fake runner of an engine made here."""
    runner = engine.runner
    assert isinstance(runner, FakeRunner)
    return runner


def step(engine: PackedEngine) -> list[TokenOutput]:
    """One step, the books checked after it."""
    outputs = engine.step()
    engine.check_integrity()
    return outputs


def drain(engine: PackedEngine, *, max_steps: int = 20_000) -> dict[int, list[TokenOutput]]:
    """Step until nothing is left; the outputs by request."""
    outputs: dict[int, list[TokenOutput]] = {}
    for _ in range(max_steps):
        if not engine.has_work():
            return outputs
        for output in step(engine):
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError(f"work is left after {max_steps} steps: {engine.stats()}")


def answer_of(outputs: list[TokenOutput]) -> Answer:
    """A request's ids and how it ended."""
    return tuple(i for output in outputs for i in output.token_ids), outputs[-1].finish_reason


def expected_answer(asked: EngineRequest, runner: FakeRunner) -> Answer:
    """What the fake runner's rule gives the request alone, without blocks, batches or caches."""
    sequence = Sequence.from_request(asked)
    context, answer = list(asked.prompt_ids), []
    while True:
        token = runner.next_token(context, sequence)
        complete = asked.choices is None or tuple(answer) in asked.choices
        if token in asked.stop_ids and complete:
            return tuple(answer), FinishReason.STOP
        answer.append(token)
        context.append(token)
        if asked.choices is not None:
            longer = any(len(c) > len(answer) and c[: len(answer)] == tuple(answer) for c in asked.choices)
            if tuple(answer) in asked.choices and not longer:
                return tuple(answer), FinishReason.STOP
        elif len(answer) >= asked.sampling.max_tokens:
            return tuple(answer), FinishReason.LENGTH
