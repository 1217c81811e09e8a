from __future__ import annotations

import pytest

from sparkinfer.config.settings import EngineSettings
from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.plan import StepPlan
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.sequence import SequenceStatus
from tests.support.engine_runs import request

INSTRUCTION = list(range(100, 230))  # 130 ids, as in the benchmark's reviews


def scheduler_of(num_blocks: int = 100, *, block_size: int = 4, **options: object) -> Scheduler:
    settings = EngineSettings(block_size=block_size, **{"batch_timeout_ms": 0, **options})  # type: ignore[arg-type]
    return Scheduler(settings, num_blocks=num_blocks, block_size=block_size)


def add_all(scheduler: Scheduler, *requests: EngineRequest) -> None:
    for asked in requests:
        scheduler.add(asked)


def run(scheduler: Scheduler, *, now: float = 9.0, token: int = 7) -> StepPlan:
    """Schedule a step and pretend that it ran."""
    plan = scheduler.schedule(now)
    for item in plan.items:
        scheduler.advance(item)
        if item.samples:
            item.sequence.token_ids.append(token)
            item.sequence.num_reported += 1
    scheduler.check_integrity()
    return plan


def shape(plan: StepPlan) -> list[tuple[int, int]]:
    return [(item.sequence.request_id, item.num_tokens) for item in plan.items]


def test_prompts_fill_the_budget_and_long_ones_run_in_chunks() -> None:
    scheduler = scheduler_of(max_batch_tokens=8)
    add_all(scheduler, request(0, [1] * 5), request(1, range(50, 60), arrival=1.0))
    assert shape(run(scheduler)) == [(0, 5), (1, 3)]
    assert shape(run(scheduler)) == [(0, 1), (1, 7)]
    plan = run(scheduler)
    assert shape(plan) == [(0, 1), (1, 1)]
    assert (plan.num_decodes, plan.num_tokens) == (2, 2)


def test_only_the_last_chunk_of_a_prompt_samples() -> None:
    scheduler = scheduler_of(max_batch_tokens=4)
    scheduler.add(request(0, range(10)))
    assert [run(scheduler).items[0].samples for _ in range(3)] == [False, False, True]


def test_decodes_come_first_and_a_prompt_that_is_cached_but_for_one_token_is_one() -> None:
    scheduler = scheduler_of()
    scheduler.add(request(0, range(8)))
    run(scheduler)
    add_all(scheduler, request(1, [50, 51, 52]), request(2, [*range(8), 9], arrival=1.0))
    plan = run(scheduler)
    assert shape(plan) == [(0, 1), (2, 1), (1, 3)]
    assert plan.num_decodes == 2


def test_no_more_run_at_once_than_the_batch_size() -> None:
    scheduler = scheduler_of(max_batch_size=2)
    add_all(scheduler, *(request(i, [i]) for i in range(3)))
    assert len(run(scheduler).items) == 2
    assert (len(scheduler.running), scheduler.num_waiting) == (2, 1)


def test_an_idle_engine_waits_for_a_full_batch_or_the_time_out() -> None:
    scheduler = scheduler_of(max_batch_size=2, batch_timeout_ms=20)
    scheduler.add(request(0, arrival=1.0))
    assert scheduler.schedule(1.019).items == []
    assert shape(scheduler.schedule(1.021)) == [(0, 3)]


def test_a_full_batch_is_closed_at_once() -> None:
    by_count = scheduler_of(max_batch_size=2, batch_timeout_ms=1000)
    add_all(by_count, request(0, [1]), request(1, [2]))
    assert len(by_count.schedule(0.0).items) == 2
    by_tokens = scheduler_of(max_batch_tokens=8, batch_timeout_ms=1000)
    by_tokens.add(request(0, range(9)))
    assert len(by_tokens.schedule(0.0).items) == 1


def test_a_batch_that_runs_takes_newcomers_without_waiting() -> None:
    scheduler = scheduler_of(batch_timeout_ms=1000)
    scheduler.add(request(0, arrival=0.0))
    run(scheduler, now=2.0)
    scheduler.add(request(1, [5, 6], arrival=2.0))
    assert shape(run(scheduler, now=2.0)) == [(0, 1), (1, 2)]


def test_a_common_instruction_of_200_requests_that_arrive_together_is_computed_once() -> None:
    scheduler = scheduler_of(4000, block_size=16, max_batch_tokens=2048)
    add_all(scheduler, *(request(i, [*INSTRUCTION, 1000 + i, 7, 8]) for i in range(200)))
    assert shape(run(scheduler)) == [(0, 133)]
    assert scheduler.num_waiting == 199
    second = run(scheduler)
    assert second.num_tokens == 1 + 199 * (133 - 128), "all others come in the next step, with the instruction cached"
    assert {item.sequence.cached_tokens for item in second.items[1:]} == {128}
    assert len({tuple(item.sequence.block_ids[:8]) for item in run(scheduler).items}) == 1


def test_other_prompts_run_while_twins_wait_for_a_prefix() -> None:
    scheduler = scheduler_of()
    add_all(scheduler, request(0, [1] * 9), request(1, [1] * 9, arrival=1.0), request(2, [2] * 9, arrival=2.0))
    assert shape(run(scheduler)) == [(0, 9), (2, 9)]
    assert shape(run(scheduler)) == [(0, 1), (2, 1), (1, 1)]


def test_twins_of_an_aborted_prompt_do_not_wait_for_ever() -> None:
    scheduler = scheduler_of(max_batch_tokens=4)
    add_all(scheduler, request(0, [1] * 12), request(1, [1] * 12, arrival=1.0))
    run(scheduler)
    scheduler.release(scheduler.running[0], SequenceStatus.FINISHED)
    scheduler.check_integrity()
    plan = run(scheduler)
    assert shape(plan) == [(1, 4)]
    assert plan.items[0].start == 4, "the block that was computed is used"


def test_a_waiting_twin_can_be_aborted() -> None:
    scheduler = scheduler_of(max_batch_tokens=4)
    add_all(scheduler, request(0, [1] * 12), request(1, [1] * 12, arrival=1.0))
    run(scheduler)
    twin = scheduler.find(1)
    assert twin is not None
    scheduler.release(twin, SequenceStatus.FINISHED)
    scheduler.check_integrity()
    assert scheduler.num_waiting == 0


def test_without_the_prefix_cache_twins_do_not_wait() -> None:
    scheduler = scheduler_of(prefix_cache=False)
    add_all(scheduler, request(0, [1] * 9), request(1, [1] * 9, arrival=1.0))
    assert shape(run(scheduler)) == [(0, 9), (1, 9)]


def test_admission_leaves_running_sequences_room_to_grow() -> None:
    scheduler = scheduler_of(5, prefix_cache=False)
    scheduler.add(request(0, [1] * 8))
    run(scheduler)
    scheduler.add(request(1, [2] * 8, arrival=1.0))
    run(scheduler)
    assert scheduler.pool.num_available == 2, "room for the prompt, but then none to grow"
    assert [s.request_id for s in scheduler.running] == [0]


def test_a_big_prompt_that_finds_no_room_is_not_overtaken() -> None:
    scheduler = scheduler_of(6, prefix_cache=False)
    scheduler.add(request(0, [1] * 12))
    run(scheduler)
    add_all(scheduler, request(1, [2] * 16, arrival=1.0), request(2, [3], arrival=2.0))
    run(scheduler)
    assert [s.request_id for s in scheduler.running] == [0]
    scheduler.release(scheduler.running[0], SequenceStatus.FINISHED)
    run(scheduler)
    assert [s.request_id for s in scheduler.running] == [1, 2]


def test_when_blocks_run_out_the_lowest_ranked_waits_again_with_its_tokens() -> None:
    scheduler = scheduler_of(5, prefix_cache=False)
    add_all(scheduler, request(0, [1] * 4, arrival=1.0), request(1, [2] * 4, arrival=0.0, priority=-1))
    while scheduler.num_preemptions == 0:
        run(scheduler)
    victim = scheduler.find(1)
    assert victim is not None
    assert victim.status is SequenceStatus.WAITING
    assert (victim.block_ids, victim.num_computed) == ([], 0)
    assert victim.num_generated > 0
    assert [s.request_id for s in scheduler.running] == [0]


def test_a_preempted_sequence_finds_its_blocks_in_the_prefix_cache() -> None:
    scheduler = scheduler_of(6)
    add_all(scheduler, request(0, [1] * 4), request(1, [2] * 4, arrival=1.0))
    while scheduler.num_preemptions == 0:
        run(scheduler)
    victim, winner = scheduler.find(1), scheduler.find(0)
    assert victim is not None
    assert winner is not None
    scheduler.release(winner, SequenceStatus.FINISHED)
    plan = run(scheduler)
    assert plan.items[0].sequence is victim
    assert plan.items[0].start == 8, "the prompt's block and the generated one that was not needed meanwhile"
    assert victim.cached_tokens == 0, "what it computed itself is not a gift"


def test_a_prompt_larger_than_the_pool_is_unfit_at_once() -> None:
    scheduler = scheduler_of(2)
    scheduler.add(request(0, [1] * 9))
    assert scheduler.schedule(0.0).items == []
    (unfit,) = scheduler.unfit()
    code, message = scheduler.unfit_error(unfit)
    assert code == "OUT_OF_MEMORY"
    assert "kv_memory" in message
    scheduler.release(unfit, SequenceStatus.FAILED)
    assert not scheduler.has_work()


def test_one_that_outgrows_the_whole_pool_is_unfit_and_holds_nothing() -> None:
    scheduler = scheduler_of(2)
    scheduler.add(request(0, [1] * 6))
    for _ in range(3):
        run(scheduler)
    assert run(scheduler).items == []
    assert [s.request_id for s in scheduler.unfit()] == [0]
    assert scheduler.pool.num_owned == 0


def test_a_smaller_budget_runs_the_first_ranked_decodes() -> None:
    scheduler = scheduler_of()
    add_all(scheduler, request(0, [1], priority=-1), request(1, [2], arrival=1.0), request(2, [3], arrival=2.0))
    run(scheduler)
    scheduler.budget.shrink(4)
    assert shape(run(scheduler)) == [(1, 1), (2, 1)]


def test_blocks_are_given_in_the_same_order_every_time() -> None:
    def blocks() -> list[list[int]]:
        scheduler = scheduler_of()
        add_all(scheduler, *(request(i, [i] * (5 + i)) for i in range(5)))
        return [item.sequence.block_ids for item in run(scheduler).items]

    assert blocks() == blocks()


@pytest.mark.parametrize("status", [SequenceStatus.FINISHED, SequenceStatus.FAILED])
def test_release_ends_a_sequence_once(status: SequenceStatus) -> None:
    scheduler = scheduler_of()
    scheduler.add(request(0))
    run(scheduler)
    sequence = scheduler.running[0]
    scheduler.release(sequence, status)
    scheduler.release(sequence, status)
    scheduler.check_integrity()
    assert sequence.status is status
    assert not scheduler.has_work()
