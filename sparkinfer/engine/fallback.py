"""The always-right path: transformers' own ``generate``, one prompt after the other, with the engine's sampler and choices.

For models that cannot be packed (recurrent layers, convolutions, attention of their own). Slow; each row's ``engine`` says so.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from sparkinfer.engine.base import EngineInfo, EngineRequest, TokenOutput
from sparkinfer.engine.constraints import longest
from sparkinfer.engine.device_errors import ended_by_device_errors
from sparkinfer.engine.plan import RunnerLost, SampledToken
from sparkinfer.engine.row_errors import no_token_error, row_error
from sparkinfer.engine.sampler import Sampler
from sparkinfer.engine.sequence import Sequence
from sparkinfer.engine.stats import EngineStats
from sparkinfer.errors import InferenceFailed
from sparkinfer.types import FinishReason


class StaticEngine:
    """Implements :class:`sparkinfer.engine.base.Engine`; a step answers one whole request.

    Args:
        model: in eval mode, on its device.
        sampler: the same as on the packed path.
        info: what runs.
    """

    def __init__(self, model: PreTrainedModel, *, sampler: Sampler, info: EngineInfo) -> None:
        model.generation_config = GenerationConfig()  # the request says all; generate() fills gaps from the model's own
        self.info = info
        self._model: PreTrainedModel | None = model
        self._sampler = sampler
        self._waiting: dict[int, Sequence] = {}
        self._stats = EngineStats()

    def add(self, request: EngineRequest) -> None:
        """Queue a request."""
        self._stats.requests += 1
        self._waiting[request.request_id] = Sequence.from_request(request)

    def abort(self, request_id: int) -> None:
        """Drop a request."""
        self._stats.aborted += self._waiting.pop(request_id, None) is not None

    def finish(self, request_id: int) -> None:
        """End a request whose text is complete."""
        self._stats.finished += self._waiting.pop(request_id, None) is not None

    def step(self) -> list[TokenOutput]:
        """Answer the most urgent request whole."""
        if not self._waiting:
            return []
        sequence = self._next()
        self._stats.steps += 1
        if not sequence.num_prompt:
            self._waiting.pop(sequence.request_id)
            return [self._fail(sequence, *no_token_error())]
        try:
            with ended_by_device_errors():
                output = self._answer(sequence)
        except RunnerLost:
            raise
        except Exception as error:  # one request's failure is data; the engine goes on
            output = self._fail(sequence, *row_error(error))
        self._waiting.pop(sequence.request_id, None)
        return [output]

    def has_work(self) -> bool:
        """Whether a request waits."""
        return bool(self._waiting)

    def running_ids(self) -> list[int]:
        """The request that runs, or that the next step will run."""
        return [self._next().request_id] if self._waiting else []

    def stats(self) -> dict[str, float]:
        """Counters since the load."""
        return asdict(self._stats)

    def close(self) -> None:
        """Let the model go."""
        self._model = None

    def _next(self) -> Sequence:
        return min(self._waiting.values(), key=lambda sequence: sequence.rank)

    def _answer(self, sequence: Sequence) -> TokenOutput:
        assert self._model is not None, "step() after close(). This is a bug."
        request = sequence.request
        draw = _Draw(self._sampler, sequence)
        self._model.generate(
            inputs=torch.tensor([sequence.token_ids], device=self._model.device),
            attention_mask=torch.ones((1, sequence.num_prompt), dtype=torch.long, device=self._model.device),
            generation_config=GenerationConfig(do_sample=False, max_new_tokens=_most_tokens(request), pad_token_id=0),
            logits_processor=LogitsProcessorList([draw]),
            stopping_criteria=StoppingCriteriaList([_Ended(draw)]),
        )
        self._stats.prompt_tokens += sequence.num_prompt
        if draw.broken is not None:
            return self._fail(sequence, InferenceFailed.code, draw.broken)
        self._stats.completion_tokens += sequence.num_generated
        self._stats.finished += 1
        wants_logprobs = request.sampling.logprobs is not None
        logprobs = tuple(t.logprob or 0.0 for t in draw.tokens[: sequence.num_generated]) if wants_logprobs else None
        return TokenOutput(
            request_id=request.request_id,
            token_ids=tuple(sequence.generated),
            logprobs=logprobs,
            finish_reason=FinishReason.STOP if draw.ended else FinishReason.LENGTH,
        )

    def _fail(self, sequence: Sequence, code: str, message: str) -> TokenOutput:
        self._stats.failed += 1
        return TokenOutput(request_id=sequence.request_id, finish_reason=FinishReason.ERROR, error=(code, message))


def _most_tokens(request: EngineRequest) -> int:
    """A choice runs to its end, and one more where a stop id has to end it."""
    return request.sampling.max_tokens if request.choices is None else longest(request.choices) + 1


class _Draw(LogitsProcessor):
    """Draws with the engine's sampler and leaves generate() nothing else to choose."""

    def __init__(self, sampler: Sampler, sequence: Sequence) -> None:
        self.tokens: list[SampledToken] = []
        self.broken: str | None = None
        self.ended = False
        self._sampler = sampler
        self._sequence = sequence

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [1, vocabulary] -> the same with only the drawn id possible."""
        tokens, broken = self._sampler.sample(scores.clone(), [self._sequence])
        self.tokens += tokens
        self.broken = broken.get(0)
        drawn = tokens[0].token_id
        request, trie = self._sequence.request, self._sequence.trie
        is_stop = self._sequence.is_ended_by(drawn)
        if not is_stop:
            self._sequence.token_ids.append(drawn)
            if trie is not None and request.sampling.logprobs is None:
                self._sequence.token_ids += trie.forced_end(self._sequence.generated)
        complete = trie is not None and trie.is_complete(self._sequence.generated)
        self.ended = is_stop or complete or self.broken is not None
        only = torch.full_like(scores, float("-inf"))
        only[0, drawn] = 0.0
        return only


class _Ended(StoppingCriteria):
    """Ends generate() when the drawn token ended the answer."""

    def __init__(self, draw: _Draw) -> None:
        self._draw = draw

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Bool [1]."""
        return torch.tensor([self._draw.ended], device=input_ids.device)
