"""A runner without a model: the public stand-in to test scheduling, block tables and the engine without torch.

Its "K/V" of a token is the token itself, kept by block. The next token is a function of the whole context **as it is read back
through the block table**, so a wrong table gives wrong tokens, as in a real engine; with ``verify`` it is caught on the spot.
"""

from __future__ import annotations

import zlib
from array import array

from sparkinfer.engine.base import EngineInfo
from sparkinfer.engine.plan import PlannedSequence, SampledToken, StepPlan, StepResult
from sparkinfer.engine.sequence import Sequence


class WrongBlockTable(AssertionError):
    """A sequence's blocks do not hold its tokens."""


class FakeRunner:
    """Implements :class:`sparkinfer.engine.plan.Runner` with integers.

    Args:
        num_blocks: size of the pool.
        block_size: tokens of a block.
        vocabulary: drawn tokens are below this.
        max_model_len: longest prompt + completion.
        verify: compare what the blocks hold with the sequence's tokens, and the plan with its rules; off in benchmarks.
        memory_tokens: a step of more tokens raises MemoryError, as a device does.
        poison_id: a prompt chunk that holds this id raises; ``nan_id``: its item fails, the batch does not.

    Attributes:
        computed_tokens: tokens run so far (a prefix computed once counts once).
        plans: for each step the (request id, tokens) of its items; recorded with ``verify``.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int = 16,
        vocabulary: int = 1000,
        max_model_len: int = 1 << 20,
        verify: bool = True,
        memory_tokens: int | None = None,
        poison_id: int | None = None,
        nan_id: int | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.info = EngineInfo(label="fake-runner", max_model_len=max_model_len, device="cpu", dtype="none")
        self.default_is_plain = True
        self.computed_tokens = 0
        self.plans: list[list[tuple[int, int]]] = []
        self._vocabulary = vocabulary
        self._verify = verify
        self._memory_tokens = memory_tokens
        self._poison_id = poison_id
        self._nan_id = nan_id
        self._blocks: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]

    def run(self, plan: StepPlan) -> StepResult:
        """Store each item's tokens by block table, then draw from what the blocks hold.

        Raises:
            MemoryError: more tokens than ``memory_tokens``.
            RuntimeError: a chunk holds ``poison_id``.
            WrongBlockTable: with ``verify``, where blocks and tokens differ.
        """
        if self._memory_tokens is not None and plan.num_tokens > self._memory_tokens:
            raise MemoryError(f"{plan.num_tokens} tokens in one step")
        if any(self._poison_id in _chunk(item) for item in plan.items):
            raise RuntimeError("the fake device was poisoned")
        if self._verify:
            self._check_plan(plan)
        for item in plan.items:
            self._store(item)
        failed = {
            index: ("INFERENCE_FAILED", "The fake logits are not numbers.")
            for index, item in enumerate(plan.items)
            if self._nan_id in _chunk(item)[: item.num_tokens]
        }
        return StepResult(tokens=[self._draw(item) for item in plan.items if item.samples], failed=failed)

    def close(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    def next_token(self, context: list[int], sequence: Sequence) -> int:
        """The token after a context, a function of all of it, the request's noise key and its choices."""
        digest = zlib.crc32(array("q", context).tobytes(), sequence.request.noise_key & 0xFFFFFFFF)
        choices = sequence.request.choices
        if choices is None:
            return digest % self._vocabulary
        done = tuple(context[sequence.num_prompt :])
        allowed = sorted({c[len(done)] for c in choices if len(c) > len(done) and c[: len(done)] == done})
        if done in choices:
            allowed += sorted(sequence.request.stop_ids)
        return allowed[digest % len(allowed)]

    def _store(self, item: PlannedSequence) -> None:
        self.computed_tokens += item.num_tokens + len(item.draft)
        if not self._verify:
            return
        for position, token in enumerate(_chunk(item), item.start):
            block = item.sequence.block_ids[position // self.block_size]
            self._blocks[block][position % self.block_size] = token

    def _draw(self, item: PlannedSequence) -> SampledToken:
        sequence = item.sequence
        context = self._read(item) if self._verify else sequence.token_ids
        accepted = 0
        while (token_id := self.next_token(context, sequence)) in item.draft[accepted : accepted + 1]:
            accepted += 1
            context = [*context, token_id]
        return SampledToken(token_id, -1.0 if sequence.request.sampling.logprobs is not None else None, accepted)

    def _read(self, item: PlannedSequence) -> list[int]:
        sequence = item.sequence
        wanted = [*sequence.token_ids, *item.draft]
        held = [token for block in sequence.block_ids for token in self._blocks[block]][: len(wanted)]
        if held != wanted:
            raise WrongBlockTable(f"The blocks of request {sequence.request_id} hold {held}, not {wanted}.")
        return sequence.token_ids

    def _check_plan(self, plan: StepPlan) -> None:
        kinds = [item.is_decode for item in plan.items]
        assert kinds == sorted(kinds, reverse=True), "decodes do not come first"
        assert len({item.sequence.request_id for item in plan.items}) == len(plan.items), "a sequence comes twice"
        for item in plan.items:
            end = item.start + item.num_tokens
            assert item.num_tokens > 0, "an empty chunk"
            assert item.start == item.sequence.num_computed, "a chunk that does not begin where the last one ended"
            assert item.samples == (end == len(item.sequence.token_ids)), "draws in the middle of a prompt"
            room = len(item.sequence.block_ids) * self.block_size
            assert end + len(item.draft) <= room, "no block for a token"
            assert item.is_decode or not item.draft, "guesses behind a prompt"
        self.plans.append([(item.sequence.request_id, item.num_tokens) for item in plan.items])


def _chunk(item: PlannedSequence) -> list[int]:
    return [*item.sequence.token_ids[item.start : item.start + item.num_tokens], *item.draft]
