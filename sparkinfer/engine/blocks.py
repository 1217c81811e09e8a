"""The block pool: which KV blocks are free, owned or cached. Integers and reference counts, no memory, no tensor.

A block is in exactly one of three places::

    free --allocate--> owned (references >= 1) --release--> free, or, where the prefix cache keeps it, cached (references 0)
                         ^                                                                              |
                         +---------------------------------- acquire -----------------------------------+
    cached --evict (least recently used first, when no block is free)--> free

so that free + owned + cached == total after every step (:meth:`BlockPool.check_integrity`). A sequence gives its blocks back
last position first. So a cached block is always older than the one before it in its chain, and evicting the oldest
takes leaves before what they hang on.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """Hands out block numbers. Deterministic: the same calls give the same blocks.

    Args:
        num_blocks: how many there are.
        block_size: tokens of one block.
    """

    def __init__(self, num_blocks: int, *, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.on_evict: Callable[[int], None] = _ignore
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: block 0 is handed out first
        self._kept: set[int] = set()  # blocks that the prefix cache knows, owned or not
        self._cached: OrderedDict[int, None] = OrderedDict()  # kept and unowned, least recently used first

    @property
    def num_available(self) -> int:
        """Blocks that :meth:`allocate` can give: free ones and cached ones that it may evict."""
        return len(self._free) + len(self._cached)

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks without an owner whose content is kept for a prompt that begins alike."""
        return len(self._cached)

    @property
    def num_owned(self) -> int:
        """Blocks that at least one sequence owns."""
        return self.num_blocks - self.num_available

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-num_tokens // self.block_size)

    def references(self, block: int) -> int:
        """How many sequences own the block."""
        return self._references[block]

    def allocate(self, count: int) -> list[int]:
        """Own ``count`` blocks anew, evicting cached ones where none is free; ask :attr:`num_available` first."""
        assert count <= self.num_available, f"{count} blocks asked for, {self.num_available} there: this is a bug"
        blocks = []
        for _ in range(count):
            if not self._free:
                self._evict()
            block = self._free.pop()
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def acquire(self, blocks: Iterable[int]) -> None:
        """Own blocks that hold a cached prefix, whether other sequences own them or none."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give a sequence's blocks back, in the order of its positions; the last one becomes the first to be evicted."""
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} released twice: this is a bug"
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._kept:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def keep(self, block: int) -> None:
        """Keep an owned block's content when its last owner is gone."""
        assert self._references[block] > 0, f"block {block} has no owner to keep it from: this is a bug"
        self._kept.add(block)

    def forget(self, block: int) -> None:
        """Keep the block no longer; without an owner it is free at once."""
        self._kept.discard(block)
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)

    def check_integrity(self, owners: Iterable[Sequence[int]]) -> None:
        """Prove the books: every block in one place, reference counts as the owners' block tables say.

        Args:
            owners: the block table of every sequence that owns blocks.

        Raises:
            AssertionError: where they do not balance; this is a bug of sparkinfer, never a user's fault.
        """
        counted = Counter(block for table in owners for block in table)
        for block, references in enumerate(self._references):
            assert references == counted[block], f"block {block}: {references} references, {counted[block]} owners"
        free, owned = set(self._free), set(counted)
        assert len(free) == len(self._free), "a block is free twice"
        assert free.isdisjoint(owned) and self._cached.keys().isdisjoint(free | owned), "a block is in two places"
        total = len(free) + len(owned) + len(self._cached)
        assert total == self.num_blocks, f"free + owned + cached is {total}, not {self.num_blocks}"
        assert self._cached.keys() <= self._kept <= owned | self._cached.keys(), "a kept block is lost"

    def eviction_order(self) -> list[int]:
        """The cached blocks, the next one to be evicted first."""
        return list(self._cached)

    def _evict(self) -> None:
        block = next(iter(self._cached))
        self.on_evict(block)
        self.forget(block)


def _ignore(block: int) -> None:
    """Nobody wants to know which block was evicted."""
