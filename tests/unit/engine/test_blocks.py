from __future__ import annotations

import pytest

from sparkinfer.engine.blocks import BlockPool


def pool_of(num_blocks: int = 4) -> BlockPool:
    return BlockPool(num_blocks, block_size=4)


def test_blocks_are_handed_out_in_order_and_each_once() -> None:
    pool = pool_of()
    assert pool.allocate(2) + pool.allocate(2) == [0, 1, 2, 3]
    assert pool.num_available == 0


def test_a_released_block_is_free_again() -> None:
    pool = pool_of()
    blocks = pool.allocate(3)
    pool.release(blocks)
    pool.check_integrity([])
    assert pool.num_free == 4


def test_asking_for_more_than_there_is_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="this is a bug"):
        pool_of().allocate(5)


def test_releasing_twice_is_a_bug() -> None:
    pool = pool_of()
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(blocks)


def test_a_shared_block_stays_until_its_last_owner_is_gone() -> None:
    pool = pool_of()
    blocks = pool.allocate(1)
    pool.acquire(blocks)
    pool.release(blocks)
    assert pool.references(blocks[0]) == 1
    pool.check_integrity([blocks])
    pool.release(blocks)
    pool.check_integrity([])


def test_a_kept_block_is_cached_when_unowned_and_can_be_owned_again() -> None:
    pool = pool_of()
    blocks = pool.allocate(1)
    pool.keep(blocks[0])
    pool.release(blocks)
    assert (pool.num_cached, pool.num_free, pool.num_available) == (1, 3, 4)
    pool.acquire(blocks)
    assert (pool.num_cached, pool.num_owned) == (0, 1)
    pool.check_integrity([blocks])


def test_cached_blocks_are_evicted_last_when_no_block_is_free_and_the_oldest_first() -> None:
    pool = pool_of()
    evicted: list[int] = []
    pool.on_evict = evicted.append
    first, second = pool.allocate(1), pool.allocate(1)
    for blocks in (second, first):
        pool.keep(blocks[0])
        pool.release(blocks)
    pool.allocate(2)
    assert evicted == []
    assert pool.allocate(1) == second
    assert evicted == second


def test_the_end_of_a_chain_is_evicted_before_its_beginning() -> None:
    pool = pool_of()
    chain = pool.allocate(3)
    for block in chain:
        pool.keep(block)
    pool.release(chain)
    assert pool.eviction_order() == chain[::-1]


def test_a_forgotten_block_is_free_at_once_when_unowned_and_at_its_release_when_owned() -> None:
    pool = pool_of()
    unowned, owned = pool.allocate(1), pool.allocate(1)
    for blocks in (unowned, owned):
        pool.keep(blocks[0])
    pool.release(unowned)
    pool.forget(unowned[0])
    assert pool.num_free == 3
    pool.forget(owned[0])
    pool.release(owned)
    assert (pool.num_free, pool.num_cached) == (4, 0)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2)])
def test_a_begun_block_counts_whole(tokens: int, blocks: int) -> None:
    assert pool_of().blocks_for(tokens) == blocks


def test_the_check_finds_a_leaked_block() -> None:
    pool = pool_of()
    pool.allocate(1)
    with pytest.raises(AssertionError, match="1 references, 0 owners"):
        pool.check_integrity([])


def test_the_check_finds_a_block_that_two_sequences_own_by_mistake() -> None:
    pool = pool_of()
    blocks = pool.allocate(1)
    with pytest.raises(AssertionError, match="1 references, 2 owners"):
        pool.check_integrity([blocks, blocks])


def test_the_check_finds_an_owner_of_a_free_block() -> None:
    with pytest.raises(AssertionError, match="0 references, 1 owners"):
        pool_of().check_integrity([[2]])
