"""The prefix cache: finds the blocks of a prompt that another sequence has computed, or is computing right now.

Only full blocks are shared, so nothing is ever copied on write. A block is found by its **link**: the block before it in the
chain, and its own token ids. Links are keys of a dict, which hashes them and then compares them whole: since the block before
is itself exact (by induction from the empty prefix), a collision of hashes costs time, never a wrong block. A block is never
evicted before those that follow it in a chain (see :mod:`sparkinfer.engine.blocks`), so a link cannot point at a reused block.

A sequence announces its prompt's blocks when it is admitted. Until they are computed they are *pending*: a prompt that begins
alike sees whom it would have to wait for. So of many prompts with one instruction that arrive together, one computes it.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass

from sparkinfer.engine.blocks import BlockPool
from sparkinfer.engine.sequence import Sequence

Link = tuple[int | None, tuple[int, ...]]


@dataclass(slots=True, frozen=True)
class PrefixMatch:
    """What a prompt has in common with earlier ones.

    Attributes:
        blocks: computed blocks that hold its first tokens.
        pending: the block after them, where a running sequence is computing it just now.
    """

    blocks: list[int]
    pending: int | None = None


class PrefixCache:
    """Index of full blocks over a pool; ``enabled=False`` finds and keeps nothing.

    Args:
        pool: keeps the blocks, and evicts the least recently used when it needs one.
    """

    def __init__(self, pool: BlockPool, *, enabled: bool = True) -> None:
        self._pool = pool
        self._enabled = enabled
        self._blocks: dict[Link, int] = {}
        self._links: dict[int, Link] = {}
        self._pending: set[int] = set()
        pool.on_evict = self._forget

    def match(self, token_ids: Ids[int]) -> PrefixMatch:
        """The longest computed prefix of these ids; at least the last id is left to compute, so that there are logits."""
        found: list[int] = []
        if not self._enabled:
            return PrefixMatch(found)
        size = self._pool.block_size
        before: int | None = None
        for end in range(size, len(token_ids), size):
            block = self._blocks.get((before, tuple(token_ids[end - size : end])))
            if block is None:
                break
            if block in self._pending:
                return PrefixMatch(found, pending=block)
            found.append(block)
            before = block
        return PrefixMatch(found)

    def announce(self, sequence: Sequence) -> None:
        """Make the full blocks of an admitted sequence's tokens known; those not yet computed are pending."""
        self._enter(sequence, len(sequence.token_ids) // self._pool.block_size)

    def computed(self, sequence: Sequence, *, start: int) -> list[int]:
        """The sequence's K/V are there up to ``num_computed`` (before: ``start``); the blocks that are pending no longer."""
        first, end = start // self._pool.block_size, sequence.num_computed // self._pool.block_size
        if first == end or not self._pending:
            return []
        done = [block for block in sequence.block_ids[first:end] if block in self._pending]
        self._pending.difference_update(done)
        return done

    def keep_computed(self, sequence: Sequence) -> None:
        """Know the generated blocks too, of a sequence that is about to give its blocks back and will come again."""
        self._enter(sequence, sequence.num_computed // self._pool.block_size)

    def abandon(self, sequence: Sequence) -> list[int]:
        """Forget what the sequence announced and did not compute; the blocks nobody has to wait for any longer."""
        if not self._pending:
            return []
        lost = [b for b in sequence.block_ids[sequence.num_computed // self._pool.block_size :] if b in self._pending]
        for block in lost:
            self._forget(block)
            self._pool.forget(block)
        return lost

    def check_integrity(self) -> None:
        """Prove the index: both directions agree, every link's block before is known, leaves are evicted first.

        Raises:
            AssertionError: a bug of sparkinfer.
        """
        assert {block: link for link, block in self._blocks.items()} == self._links, "index and links disagree"
        assert self._pending <= self._links.keys(), "a pending block is not in the index"
        age = {block: place for place, block in enumerate(self._pool.eviction_order())}
        for block, (before, ids) in self._links.items():
            assert len(ids) == self._pool.block_size, f"block {block} is not full"
            assert before is None or before in self._links, f"block {block} hangs on a block that is gone"
            first = before not in age or age.get(block, len(age)) < age[before]
            assert first, f"block {before} would be evicted before {block}, which hangs on it"
        assert not any(self._pool.references(block) == 0 for block in self._pending), "a pending block has no owner"

    def _enter(self, sequence: Sequence, num_blocks: int) -> None:
        if not self._enabled:
            return
        size = self._pool.block_size
        before: int | None = None
        for index in range(num_blocks):
            block = sequence.block_ids[index]
            link = (before, tuple(sequence.token_ids[index * size : (index + 1) * size]))
            known = self._blocks.setdefault(link, block)
            if known != block:  # a twin was first; blocks that hang on its block without owning it could outlive it
                return
            if block not in self._links:
                self._links[block] = link
                self._pool.keep(block)
                if (index + 1) * size > sequence.num_computed:
                    self._pending.add(block)
            before = block

    def _forget(self, block: int) -> None:
        link = self._links.pop(block)
        del self._blocks[link]
        self._pending.discard(block)
