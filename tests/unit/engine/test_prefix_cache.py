from __future__ import annotations

import pytest

from sparkinfer.engine.blocks import BlockPool
from sparkinfer.engine.prefix_cache import PrefixCache
from sparkinfer.engine.sequence import Sequence
from tests.support.engine_runs import request

SIZE = 4


class Books:
    """A pool and its cache, with sequences admitted by hand."""

    def __init__(self, num_blocks: int = 16, *, enabled: bool = True) -> None:
        self.pool = BlockPool(num_blocks, block_size=SIZE)
        self.cache = PrefixCache(self.pool, enabled=enabled)
        self.owners: list[Sequence] = []

    def admit(self, ids: list[int], *, computed: bool = True) -> Sequence:
        sequence = Sequence.from_request(request(len(self.owners), ids))
        cached = self.cache.match(ids).blocks
        self.pool.acquire(cached)
        sequence.block_ids = cached + self.pool.allocate(self.pool.blocks_for(len(ids)) - len(cached))
        sequence.num_computed = len(cached) * SIZE
        self.cache.announce(sequence)
        self.owners.append(sequence)
        if computed:
            self.compute(sequence)
        self.check()
        return sequence

    def compute(self, sequence: Sequence, num_tokens: int | None = None) -> list[int]:
        start = sequence.num_computed
        sequence.num_computed = len(sequence.token_ids) if num_tokens is None else num_tokens
        return self.cache.computed(sequence, start=start)

    def leave(self, sequence: Sequence) -> list[int]:
        abandoned = self.cache.abandon(sequence)
        self.pool.release(sequence.block_ids)
        self.owners.remove(sequence)
        self.check()
        return abandoned

    def check(self) -> None:
        self.pool.check_integrity(sequence.block_ids for sequence in self.owners)
        self.cache.check_integrity()


def test_full_blocks_of_a_common_prefix_are_found() -> None:
    books = Books()
    first = books.admit(list(range(10)))
    assert books.cache.match([*range(8), 99, 98]).blocks == first.block_ids[:2]
    assert books.cache.match([*range(7), 99, 98]).blocks == first.block_ids[:1]
    assert books.cache.match([99, *range(9)]).blocks == []


def test_the_last_token_is_always_left_to_compute() -> None:
    books = Books()
    first = books.admit(list(range(8)))
    assert books.cache.match(list(range(8))).blocks == first.block_ids[:1]
    assert books.cache.match(list(range(9))).blocks == first.block_ids


def test_the_same_ids_after_another_beginning_are_another_block() -> None:
    books = Books()
    books.admit([1, 1, 1, 1, 5, 5, 5, 5, 0])
    assert books.cache.match([2, 2, 2, 2, 5, 5, 5, 5, 0]).blocks == []
    assert books.cache.match([5, 5, 5, 5, 0]).blocks == []


def test_a_hit_survives_its_owner() -> None:
    books = Books()
    first = books.admit(list(range(9)))
    blocks = first.block_ids[:2]
    books.leave(first)
    assert books.cache.match(list(range(9))).blocks == blocks


def test_a_block_being_computed_is_pending_and_told_when_done() -> None:
    books = Books()
    first = books.admit(list(range(9)), computed=False)
    assert books.cache.match([*range(8), 50]).pending == first.block_ids[0]
    assert books.compute(first, 6) == first.block_ids[:1]
    match = books.cache.match([*range(8), 50])
    assert (match.blocks, match.pending) == (first.block_ids[:1], first.block_ids[1])
    assert books.compute(first) == first.block_ids[1:2]
    assert books.cache.match([*range(8), 50]).pending is None


def test_what_an_aborted_sequence_did_not_compute_is_forgotten() -> None:
    books = Books()
    first = books.admit(list(range(13)), computed=False)
    books.compute(first, 5)
    blocks = list(first.block_ids)
    assert books.leave(first) == blocks[1:3]
    match = books.cache.match(list(range(13)))
    assert (match.blocks, match.pending) == (blocks[:1], None)


def test_a_twin_that_was_later_keeps_its_own_block_out_of_the_index() -> None:
    books = Books()
    first = books.admit(list(range(8)))
    twin = books.admit(list(range(8)))
    assert twin.block_ids[0] == first.block_ids[0]
    assert twin.block_ids[1] != first.block_ids[1]
    books.leave(first)
    books.leave(twin)
    assert books.cache.match(list(range(9))).blocks == first.block_ids


def test_eviction_takes_leaves_first_and_shortens_hits() -> None:
    books = Books(num_blocks=4)
    first = books.admit(list(range(13)))
    chain = list(first.block_ids)
    books.leave(first)
    books.admit([90, 91, 92, 93, 94])
    assert books.cache.match(list(range(13))).blocks == chain[:2]


def test_a_prefix_in_use_is_not_evicted_when_its_first_owner_is_gone() -> None:
    books = Books(num_blocks=4)
    first = books.admit(list(range(9)))
    books.admit([*range(8), 70])
    books.leave(first)
    books.admit([80])
    assert books.cache.match(list(range(9))).blocks == first.block_ids[:2]


def test_blocks_generated_by_a_preempted_sequence_are_found_again() -> None:
    books = Books()
    sequence = books.admit([1, 2, 3, 4, 5])
    sequence.token_ids += [6, 7, 8, 9]
    sequence.num_computed = 8
    books.cache.keep_computed(sequence)
    blocks = list(sequence.block_ids)
    books.leave(sequence)
    assert books.cache.match([1, 2, 3, 4, 5, 6, 7, 8, 9]).blocks == blocks


def test_ids_whose_hashes_collide_are_told_apart() -> None:
    books = Books()
    assert hash(-1) == hash(-2), "CPython's integers collide here"
    books.admit([-1, -1, -1, -1, 0])
    assert books.cache.match([-2, -2, -2, -2, 0]).blocks == []


def test_switched_off_it_finds_and_keeps_nothing() -> None:
    books = Books(enabled=False)
    books.leave(books.admit(list(range(9))))
    assert books.cache.match(list(range(9))).blocks == []
    assert books.pool.num_free == books.pool.num_blocks


def test_the_check_finds_a_link_to_a_block_that_is_gone() -> None:
    books = Books()
    first = books.admit(list(range(9)))
    books.cache._forget(first.block_ids[0])
    with pytest.raises(AssertionError, match="hangs on a block that is gone"):
        books.cache.check_integrity()
