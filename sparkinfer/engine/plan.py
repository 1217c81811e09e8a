"""The plan of one step: the scheduler's whole answer and the runner's whole question. Integers only.

``Runner`` is the seam between deciding (integers) and computing (tensors).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from sparkinfer.engine.base import EngineInfo
from sparkinfer.engine.sequence import Sequence


@dataclass(slots=True)
class PlannedSequence:
    """Run ``sequence.token_ids[start : start + num_tokens]``, and behind them ``draft``.

    Attributes:
        samples: the logits after the last of these tokens are drawn from (false for all but the last chunk of a prompt).
        draft: guessed ids to run behind a decode; each is right where the model's best after those before it is the same.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    draft: tuple[int, ...] = ()

    @property
    def is_decode(self) -> bool:
        """Whether it is one token whose logits are drawn from."""
        return self.num_tokens == 1 and self.samples


@dataclass(slots=True)
class StepPlan:
    """One batch.

    Attributes:
        items: decodes first, then prefill chunks; a sequence comes once.
    """

    items: list[PlannedSequence] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens that run in this step, guessed ones included."""
        return sum(item.num_tokens + len(item.draft) for item in self.items)

    @property
    def num_decodes(self) -> int:
        """How many of the leading items are decodes."""
        return sum(item.is_decode for item in self.items)


@dataclass(slots=True)
class SampledToken:
    """One drawn token; ``logprob`` where the request asked for it, ``accepted``: how many ids of the draft come before it."""

    token_id: int
    logprob: float | None = None
    accepted: int = 0


@dataclass(slots=True)
class StepResult:
    """What a step gave.

    Attributes:
        tokens: one per item with ``samples`` (failed ones included, their token is ignored), in the order of items.
        failed: index in ``items`` -> (code, message), for example logits that are not numbers.
    """

    tokens: list[SampledToken]
    failed: dict[int, tuple[str, str]] = field(default_factory=dict)


class RunnerLost(Exception):
    """The runner cannot run any step more, whatever is in it; the engine ends with it."""


class Runner(Protocol):
    """Computes a plan: the model's forward over its tokens, K/V stored by block table, then sampling."""

    num_blocks: int
    block_size: int
    info: EngineInfo
    default_is_plain: bool
    """Whether a greedy request that names no penalty takes the model's best token as it is, so that it can be guessed."""

    def run(self, plan: StepPlan) -> StepResult:
        """Run one step. Raises where the whole batch failed; then no token counts as computed.

        Raises:
            RunnerLost: nothing can be run any more.
        """

    def close(self) -> None:
        """Give memory back; the runner is unusable afterwards."""
