"""A sequence: one request on its way through the engine, as integers. No text, no tensor.

Life: WAITING -> RUNNING -> FINISHED | FAILED; preemption brings RUNNING back to WAITING with its tokens kept and its
blocks given back. While it runs, ``block_ids[p // block_size]`` is the block that holds the K/V of position ``p``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.constraints import Trie, trie_of
from sparkinfer.engine.guesses import Guesses


class SequenceStatus(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Sequence:
    """One request and what the engine has done for it so far.

    Attributes:
        request: what was asked.
        token_ids: the prompt's ids, then the generated ones.
        num_prompt: how many of them are the prompt's.
        num_computed: tokens whose K/V are in the block pool.
        num_reported: generated ids that an output has given out.
        block_ids: its blocks in the order of positions; shared ones (a cached prefix) come first.
        cached_tokens: of the prompt's tokens, how many the prefix cache gave.
        status: see :class:`SequenceStatus`.
        aged: it was once admitted because it had waited longest; from then on it outranks every priority.
        trie: the request's choices, or None.
        guesses: what guesses the next tokens from the ones so far, or None while nothing was guessed.
    """

    request: EngineRequest
    token_ids: list[int]
    num_prompt: int
    num_computed: int = 0
    num_reported: int = 0
    block_ids: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    status: SequenceStatus = SequenceStatus.WAITING
    aged: bool = False
    trie: Trie | None = None
    guesses: Guesses | None = None

    @classmethod
    def from_request(cls, request: EngineRequest) -> Sequence:
        """A waiting sequence without blocks."""
        return cls(
            request=request,
            token_ids=list(request.prompt_ids),
            num_prompt=len(request.prompt_ids),
            trie=None if request.choices is None else trie_of(request.choices),
        )

    @property
    def request_id(self) -> int:
        """The request's number."""
        return self.request.request_id

    @property
    def generated(self) -> list[int]:
        """The ids generated so far (a copy)."""
        return self.token_ids[self.num_prompt :]

    @property
    def num_generated(self) -> int:
        """How many ids were generated so far."""
        return len(self.token_ids) - self.num_prompt

    def forced(self) -> list[int]:
        """The ids that must come next and take no step of their own; with log-probabilities each takes one, for it has its own."""
        if self.trie is None or self.request.sampling.logprobs is not None:
            return []
        return self.trie.forced(self.generated)

    def is_ended_by(self, token_id: int) -> bool:
        """Whether the token ends the answer without being part of it; among choices only where one is complete."""
        if token_id not in self.request.stop_ids:
            return False
        return self.request.choices is None or tuple(self.generated) in self.request.choices

    @property
    def num_uncomputed(self) -> int:
        """Tokens that still have to run before the next one can be drawn: 1 while it decodes."""
        return len(self.token_ids) - self.num_computed

    @property
    def urgency(self) -> tuple[bool, int, float]:
        """What goes before age and grouping: smaller is served first."""
        deadline = self.request.deadline
        return (not self.aged, -self.request.priority, float("inf") if deadline is None else deadline)

    @property
    def rank(self) -> tuple[bool, int, float, float, int]:
        """A total order over sequences: priority, then earliest deadline, then age. Smaller is served first."""
        return (*self.urgency, self.request.arrival, self.request.request_id)
