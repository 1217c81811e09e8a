"""One step computed: the plan's tokens packed into one forward of the transformers model, then sampled.

The model keeps no cache of its own; K and V go into the paged pool through the attention function (see attention/hook.py).
Logits are made only for the tokens that a sequence samples from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from sparkinfer.engine.attention import hook
from sparkinfer.engine.attention.base import Attention, PackedBatch, pack, slices
from sparkinfer.engine.base import EngineInfo
from sparkinfer.engine.device_errors import ended_by_device_errors
from sparkinfer.engine.plan import StepPlan, StepResult
from sparkinfer.engine.sampler import Sampler

_STRICT_TOKENS = 64  # strict mode runs slices of exactly so many tokens

ModelForward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``(ids [1, T], positions [1, T], rows [R]) -> logits [R, vocabulary]``, with the attention kernel behind it."""


class Recordings(Protocol):
    """Steps that are recorded once and replayed: ``replays.py`` on a CPU, ``graphs.py`` on a card."""

    works: bool

    def run(self, batch: PackedBatch) -> torch.Tensor | None:
        """The logits of a step, its K/V stored; None for a step that has to be run as it is."""


class PackedRunner:
    """Implements :class:`sparkinfer.engine.plan.Runner` with a transformers model.

    Args:
        model: in eval mode, on its device; its attention implementation is set here.
        num_blocks: how many blocks of the pool plans may use; in strict mode the next one is for padding.
        block_size: tokens of a block.
        attention: the kernel over that pool.
        sampler: draws the tokens.
        info: what runs.
        strict: give every forward the same shape, so that rounding cannot depend on the batch.
        recordings: makes of the model's forward what replays its steps; None: each is run anew.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        num_blocks: int,
        block_size: int,
        attention: Attention,
        sampler: Sampler,
        info: EngineInfo,
        strict: bool = False,
        recordings: Callable[[ModelForward], Recordings] | None = None,
    ) -> None:
        hook.register()
        model.set_attn_implementation(hook.IMPLEMENTATION)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.info = info
        self.default_is_plain = sampler.repetition_penalty == 1.0
        self._model: PreTrainedModel | None = model
        self._attention: Attention | None = attention
        self._sampler = sampler
        self._strict = strict
        self._recordings = None if recordings is None else recordings(self._model_logits)

    @property
    def records(self) -> bool:
        """Whether steps are recorded, and all could be so far."""
        return self._recordings is not None and self._recordings.works

    def run(self, plan: StepPlan) -> StepResult:
        """Run one step; see :class:`sparkinfer.engine.plan.Runner`."""
        with ended_by_device_errors():
            return self._run(plan)

    @torch.inference_mode()
    def _run(self, plan: StepPlan) -> StepResult:
        batch = pack(plan.items, self.block_size)
        logits = self.logits(batch)
        sampling = [index for index, item in enumerate(plan.items) if item.samples]
        if not sampling:
            return StepResult(tokens=[])
        accepted = [0] * len(sampling)
        if any(item.draft for item in plan.items):
            logits, accepted = _after_guesses(logits, [plan.items[index].draft for index in sampling])
        tokens, broken = self._sampler.sample(logits, [plan.items[index].sequence for index in sampling])
        for token, count in zip(tokens, accepted, strict=True):
            token.accepted = count
        return StepResult(tokens, {sampling[row]: ("INFERENCE_FAILED", why) for row, why in broken.items()})

    @torch.inference_mode()
    def logits(self, batch: PackedBatch) -> torch.Tensor:
        """Store the batch's K/V; float ``[len(batch.sample_rows), vocabulary]``."""
        if self._recordings is not None and (logits := self._recordings.run(batch)) is not None:
            return logits
        if not self._strict:
            return self._forward(batch, batch.sample_rows)
        parts = slices(batch, _STRICT_TOKENS, padding_block=self.num_blocks, block_size=self.block_size)
        every = np.arange(_STRICT_TOKENS)
        return torch.cat([self._forward(part, every)[part.sample_rows] for part in parts])

    def _forward(self, batch: PackedBatch, sample_rows: np.ndarray) -> torch.Tensor:
        assert self._model is not None and self._attention is not None, "run() after close(). This is a bug."
        self._attention.begin(batch)
        device = self._model.device
        rows = torch.from_numpy(sample_rows if len(sample_rows) else batch.query_starts[1:2] - 1)  # models want one
        return self._model_logits(
            torch.from_numpy(batch.token_ids)[None].to(device),
            torch.from_numpy(batch.positions)[None].to(device),
            rows.to(device),
        )

    def _model_logits(self, ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        assert self._model is not None and self._attention is not None, "run() after close(). This is a bug."
        with hook.backend(self._attention):
            output = self._model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=rows)
        logits: torch.Tensor = output.logits[0]
        return logits

    def close(self) -> None:
        """Let model and pool go."""
        self._model = self._attention = self._recordings = None


def _after_guesses(logits: torch.Tensor, drafts: list[tuple[int, ...]]) -> tuple[torch.Tensor, list[int]]:
    """Of each sequence's rows (its own and one for each guess) the one after its last right guess, and how many were right."""
    values, ids = logits.max(1)
    # An id that won by a logit that is no number is no token; the sampler looks at that row and says so.
    best = torch.where(values.isfinite(), ids, -1).tolist()
    rows, accepted, first = [], [], 0
    for draft in drafts:
        right = 0
        while right < len(draft) and best[first + right] == draft[right]:
            right += 1
        rows.append(first + right)
        accepted.append(right)
        first += 1 + len(draft)
    return logits[rows], accepted
