"""Whatever sequences do with the pool and the cache: the books balance, hits hold the right tokens, nothing is leaked."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from sparkinfer.engine.blocks import BlockPool
from sparkinfer.engine.prefix_cache import PrefixCache
from sparkinfer.engine.sequence import Sequence
from tests.support.engine_runs import request

SIZE = 2
NUM_BLOCKS = 12


class BlocksMachine(RuleBasedStateMachine):
    """Sequences are admitted, computed in chunks, grow, are preempted and leave, in any order."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, block_size=SIZE)
        self.cache = PrefixCache(self.pool)
        self.alive: list[Sequence] = []
        self.held: dict[int, list[int]] = {}  # block -> tokens that were really computed into it

    @rule(target=running, ids=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def admit(self, ids: list[int]) -> object:
        match = self.cache.match(ids)
        for index, block in enumerate(match.blocks):
            assert self.held[block] == ids[index * SIZE : (index + 1) * SIZE], "a hit on other tokens"
        assert len(match.blocks) * SIZE < len(ids), "nothing is left to compute"
        self.pool.acquire(match.blocks)
        needed = self.pool.blocks_for(len(ids)) - len(match.blocks)
        if match.pending is not None or needed > self.pool.num_available:
            self.pool.release(match.blocks)
            return multiple()
        sequence = Sequence.from_request(request(len(self.alive), ids))
        sequence.block_ids = match.blocks + self.pool.allocate(needed)
        sequence.num_computed = len(match.blocks) * SIZE
        self.cache.announce(sequence)
        self.alive.append(sequence)
        return sequence

    @rule(sequence=running, num_tokens=st.integers(1, 5))
    def compute(self, sequence: Sequence, num_tokens: int) -> None:
        start = sequence.num_computed
        sequence.num_computed = min(start + num_tokens, len(sequence.token_ids))
        for position in range(start, sequence.num_computed):
            tokens = self.held.setdefault(sequence.block_ids[position // SIZE], [])
            del tokens[position % SIZE :]
            tokens.append(sequence.token_ids[position])
        self.cache.computed(sequence, start=start)

    @rule(sequence=running, token=st.integers(0, 1))
    def grow(self, sequence: Sequence, token: int) -> None:
        if sequence.num_computed < len(sequence.token_ids):
            return
        if len(sequence.token_ids) == len(sequence.block_ids) * SIZE:
            if self.pool.num_available == 0:
                return
            sequence.block_ids += self.pool.allocate(1)
        sequence.token_ids.append(token)

    @rule(sequence=consumes(running), keep=st.booleans())
    def leave(self, sequence: Sequence, keep: bool) -> None:
        if keep:
            self.cache.keep_computed(sequence)
        self.cache.abandon(sequence)
        self.pool.release(sequence.block_ids)
        self.alive.remove(sequence)

    @invariant()
    def books_balance(self) -> None:
        self.pool.check_integrity(sequence.block_ids for sequence in self.alive)
        self.cache.check_integrity()

    def teardown(self) -> None:
        for sequence in list(self.alive):
            self.leave(sequence, keep=False)
        self.books_balance()
        assert self.pool.num_available == NUM_BLOCKS
        assert self.pool.allocate(NUM_BLOCKS), "every block can be had again"


BlocksMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestBlocksMachine = BlocksMachine.TestCase
