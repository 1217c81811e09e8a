from __future__ import annotations

import pytest

from sparkinfer.engine.buckets import OLDEST_EVERY
from sparkinfer.engine.engine import PackedEngine
from sparkinfer.engine.plan import SampledToken, StepPlan, StepResult
from sparkinfer.types import FinishReason
from tests.support.engine_runs import (
    Clock,
    answer_of,
    drain,
    engine_of,
    expected_answer,
    request,
    runner_of,
    step,
)

INSTRUCTION = list(range(100, 230))


def first_tokens(engine: PackedEngine, prompt: list[int], count: int) -> list[int]:
    return list(expected_answer(request(0, prompt, max_tokens=count), runner_of(engine))[0])


def test_an_answer_ends_at_max_tokens_and_says_so() -> None:
    engine = engine_of()
    asked = request(0, max_tokens=3)
    engine.add(asked)
    ids, reason = answer_of(drain(engine)[0])
    assert len(ids) == 3
    assert reason is FinishReason.LENGTH
    assert (ids, reason) == expected_answer(asked, runner_of(engine))


def test_each_step_gives_one_token_and_only_the_last_output_has_a_reason() -> None:
    engine = engine_of()
    engine.add(request(0, max_tokens=3))
    outputs = drain(engine)[0]
    assert [len(o.token_ids) for o in outputs] == [1, 1, 1]
    assert [o.finish_reason for o in outputs] == [None, None, FinishReason.LENGTH]


def test_a_stop_id_ends_the_answer_and_is_no_part_of_it() -> None:
    engine = engine_of()
    tokens = first_tokens(engine, [1, 2, 3], 3)
    engine.add(request(0, max_tokens=9, stop_ids=[tokens[2]], logprobs=0))
    outputs = drain(engine)[0]
    assert answer_of(outputs) == (tuple(tokens[:2]), FinishReason.STOP)
    assert [o.logprobs for o in outputs] == [(-1.0,), (-1.0,), None]


def test_an_answer_can_be_empty() -> None:
    engine = engine_of()
    engine.add(request(0, stop_ids=first_tokens(engine, [1, 2, 3], 1)))
    assert answer_of(drain(engine)[0]) == ((), FinishReason.STOP)


def test_an_answer_ends_where_the_models_context_ends() -> None:
    engine = engine_of(max_model_len=5)
    engine.add(request(0, [1, 2, 3], max_tokens=9))
    ids, reason = answer_of(drain(engine)[0])
    assert (len(ids), reason) == (2, FinishReason.LENGTH)


def test_a_choice_runs_to_its_end_whatever_max_tokens_says() -> None:
    engine = engine_of()
    engine.add(request(0, max_tokens=1, choices=((5, 6, 7),)))
    assert answer_of(drain(engine)[0]) == ((5, 6, 7), FinishReason.STOP)


def test_ids_that_leave_nothing_to_decide_take_no_step_wherever_they_stand() -> None:
    engine = engine_of()
    choices = ((5, 6, 7, 1), (5, 6, 8, 9, 2), (5, 6, 8, 9, 3))  # 5 and 6 at the start, 9 in the middle
    asked = [request(number, choices=choices, noise_key=number) for number in range(9)]
    for one in asked:
        engine.add(one)
    outputs = drain(engine)
    answers = {number: answer_of(made) for number, made in outputs.items()}
    assert answers == {one.request_id: expected_answer(one, runner_of(engine)) for one in asked}
    assert {ids for ids, _ in answers.values()} == set(choices)
    for number, made in outputs.items():
        assert len(made) == (1 if answers[number][0] == choices[0] else 2)
        assert made[0].token_ids[:2] == (5, 6)
    assert engine.stats()["completion_tokens"] == sum(len(ids) for ids, _ in answers.values())


def test_with_logprobs_each_forced_id_has_its_own() -> None:
    engine = engine_of()
    engine.add(request(0, choices=((5, 6, 7), (5, 6, 8)), logprobs=1))
    outputs = drain(engine)[0]
    assert [len(output.token_ids) for output in outputs] == [1, 1, 1]
    assert all(output.logprobs == (-1.0,) for output in outputs)


def test_a_decided_choice_takes_no_step_for_the_tokens_that_are_left() -> None:
    engine = engine_of()
    choices = ((5, 6, 7, 8), (9, 6, 7), (4,))
    for number in range(6):
        engine.add(request(number, choices=choices, noise_key=number))
    outputs = drain(engine)
    assert {len(made) for made in outputs.values()} == {1}
    answers = {number: answer_of(made) for number, made in outputs.items()}
    assert {ids for ids, _ in answers.values()} <= set(choices)
    for number, (ids, reason) in answers.items():
        assert (ids, reason) == expected_answer(request(number, choices=choices, noise_key=number), runner_of(engine))
    assert engine.stats()["completion_tokens"] == sum(len(ids) for ids, _ in answers.values())


def test_with_logprobs_each_token_of_a_choice_has_its_own() -> None:
    engine = engine_of()
    engine.add(request(0, choices=((5, 6, 7),), logprobs=0))
    outputs = drain(engine)[0]
    assert [(o.token_ids, o.logprobs) for o in outputs] == [((5,), (-1.0,)), ((6,), (-1.0,)), ((7,), (-1.0,))]


@pytest.mark.parametrize("noise", range(8))
def test_a_choice_that_another_begins_with_ends_by_a_stop_id(noise: int) -> None:
    engine = engine_of()
    asked = request(0, choices=((5,), (5, 6)), stop_ids=[2], noise_key=noise)
    engine.add(asked)
    ids, reason = answer_of(drain(engine)[0])
    assert ids in asked.choices  # type: ignore[operator]
    assert reason is FinishReason.STOP


def test_a_stop_id_inside_a_choice_is_a_part_of_it() -> None:
    engine = engine_of()
    engine.add(request(0, choices=((5, 2, 6),), stop_ids=[2]))
    assert answer_of(drain(engine)[0]) == ((5, 2, 6), FinishReason.STOP)


def test_an_aborted_request_gives_no_output_and_holds_no_block() -> None:
    engine = engine_of()
    engine.add(request(0, max_tokens=50))
    engine.add(request(1, [9], max_tokens=2))
    step(engine)
    engine.abort(0)
    engine.check_integrity()
    assert set(drain(engine)) == {1}
    assert engine.stats()["blocks_owned"] == 0
    assert engine.stats()["aborted"] == 1


def test_a_finished_request_ends_and_unknown_ids_are_ignored() -> None:
    engine = engine_of()
    engine.add(request(0, max_tokens=50))
    step(engine)
    engine.finish(0)
    engine.finish(0)
    engine.abort(77)
    assert not engine.has_work()
    assert (engine.stats()["finished"], engine.stats()["aborted"]) == (1, 0)


def test_the_suspects_are_the_batch_that_the_next_step_runs() -> None:
    engine = engine_of(max_batch_size=2)
    for number in range(3):
        engine.add(request(number, [number], max_tokens=2))
    suspects = engine.running_ids()
    assert suspects == [0, 1]
    assert [o.request_id for o in step(engine)] == suspects


def test_a_request_aborted_after_it_was_planned_does_not_run() -> None:
    engine = engine_of()
    engine.add(request(0, [4, 4]))
    engine.add(request(1, [5, 5]))
    assert engine.running_ids() == [0, 1]
    engine.abort(0)
    assert engine.running_ids() == [1]
    step(engine)
    assert runner_of(engine).plans == [[(1, 2)]]


def test_a_batch_all_of_whose_requests_were_aborted_does_not_run() -> None:
    engine = engine_of()
    engine.add(request(0))
    engine.running_ids()
    engine.abort(0)
    assert step(engine) == []
    assert runner_of(engine).plans == []


def test_a_request_aborted_while_its_batch_runs_gives_no_output() -> None:
    engine = engine_of()

    def abort_then_run(plan: StepPlan) -> StepResult:
        engine.abort(0)
        return StepResult(tokens=[SampledToken(1) for _ in plan.items])

    engine.add(request(0))
    engine.add(request(1, [8, 8]))
    runner_of(engine).run = abort_then_run  # type: ignore[method-assign]
    assert [o.request_id for o in step(engine)] == [1]


def test_an_idle_engine_waits_for_its_batch_to_fill_or_time_out() -> None:
    clock = Clock()
    engine = engine_of(clock=clock, batch_timeout_ms=20)
    engine.add(request(0, arrival=0.0, max_tokens=1))
    clock.now = 0.010
    assert step(engine) == []
    assert engine.has_work()
    clock.now = 0.021
    assert [o.request_id for o in step(engine)] == [0]


def test_a_prompt_larger_than_the_pool_fails_alone() -> None:
    engine = engine_of(4)
    engine.add(request(0, [1] * 17))
    engine.add(request(1, [2]))
    outputs = drain(engine)
    assert outputs[0][0].finish_reason is FinishReason.ERROR
    assert outputs[0][0].error is not None
    assert outputs[0][0].error[0] == "OUT_OF_MEMORY"
    assert outputs[1][-1].finish_reason is FinishReason.LENGTH


def test_an_answer_that_outgrows_the_whole_pool_fails_and_leaves_it_empty() -> None:
    engine = engine_of(2)
    engine.add(request(0, [1] * 6, max_tokens=50))
    outputs = drain(engine)[0]
    assert outputs[-1].error is not None
    assert outputs[-1].error[0] == "OUT_OF_MEMORY"
    assert len(outputs) == 4, "three tokens came before"
    assert engine.stats()["blocks_owned"] == 0


def test_a_failed_item_fails_its_request_and_no_other() -> None:
    engine = engine_of(nan_id=66)
    engine.add(request(0, [1, 66, 2]))
    engine.add(request(1, [1, 2, 3]))
    outputs = drain(engine)
    assert outputs[0][-1].error == ("INFERENCE_FAILED", "The fake logits are not numbers.")
    assert answer_of(outputs[1]) == expected_answer(request(1, [1, 2, 3]), runner_of(engine))
    assert (engine.stats()["failed"], engine.stats()["finished"]) == (1, 1)


def test_blocks_of_a_failed_prompt_are_given_to_nobody() -> None:
    engine = engine_of(nan_id=66)
    prompt = [1, 2, 3, 4, 66, 6, 7, 8, 9]
    engine.add(request(0, prompt))
    engine.add(request(1, [*prompt[:4], 50]))
    outputs = drain(engine)
    assert outputs[1][0].cached_tokens == 0


def test_a_step_that_finds_no_memory_runs_again_in_smaller_ones() -> None:
    engine = engine_of(max_batch_tokens=64, memory_tokens=10)
    asked = [request(i, [i] * 9, max_tokens=3) for i in range(6)]
    for one in asked:
        engine.add(one)
    outputs = drain(engine)
    for one in asked:
        assert answer_of(outputs[one.request_id]) == expected_answer(one, runner_of(engine))
    assert engine.stats()["failed_steps"] > 0
    assert engine.stats()["failed"] == 0


def test_when_memory_is_there_again_batches_grow_back() -> None:
    engine = engine_of(memory_tokens=4)
    for number in range(8):
        engine.add(request(number, [number], max_tokens=100))
    while len(runner_of(engine).plans) < 2:
        step(engine)
    assert max(map(len, runner_of(engine).plans)) <= 4
    runner_of(engine)._memory_tokens = None
    drain(engine)
    assert max(map(len, runner_of(engine).plans)) == 8


def test_a_row_that_finds_no_memory_even_alone_fails() -> None:
    engine = engine_of(memory_tokens=0)
    engine.add(request(0))
    engine.add(request(1, [9]))
    outputs = drain(engine)
    errors = [o[-1].error for o in outputs.values()]
    assert [e[0] for e in errors if e is not None] == ["OUT_OF_MEMORY"] * 2
    assert engine.stats()["blocks_owned"] == 0


def test_a_row_that_makes_its_step_raise_is_found_and_its_neighbours_finish() -> None:
    engine = engine_of(poison_id=66)
    asked = [request(i, [i, i, i], max_tokens=3) for i in range(8)]
    for one in asked:
        engine.add(one)
    engine.add(request(99, [5, 66, 7]))
    outputs = drain(engine)
    error = outputs.pop(99)[-1].error
    assert error is not None
    assert error[0] == "INFERENCE_FAILED"
    assert "the fake device was poisoned" in error[1]
    for one in asked:
        assert answer_of(outputs[one.request_id]) == expected_answer(one, runner_of(engine))


def test_a_wrong_block_table_is_caught() -> None:
    engine = engine_of(prefix_cache=False)
    engine.add(request(0, [1] * 9, max_tokens=8))
    engine.add(request(1, [2] * 9, max_tokens=8))
    step(engine)
    first, second = engine._scheduler.running
    first.block_ids[0], second.block_ids[0] = second.block_ids[0], first.block_ids[0]
    outputs = drain(engine)
    errors = [o[-1].error for o in outputs.values()]
    assert all(e is not None and "WrongBlockTable" in e[1] for e in errors)


def test_the_books_notice_a_block_table_that_points_elsewhere() -> None:
    engine = engine_of()
    engine.add(request(0, [1] * 9))
    step(engine)
    engine._scheduler.running[0].block_ids[0] = 60
    with pytest.raises(AssertionError, match="references"):
        engine.check_integrity()


def test_an_instruction_that_arrives_200_times_at_once_is_computed_once() -> None:
    engine = engine_of(4000, block_size=16)
    for number in range(200):
        engine.add(request(number, [*INSTRUCTION, 1000 + number], max_tokens=2))
    drain(engine)
    stats = engine.stats()
    assert stats["prompt_tokens"] == 200 * 131
    assert stats["cached_tokens"] == 199 * 128
    assert runner_of(engine).computed_tokens == 131 + 199 * 3 + 200


def test_questions_about_one_document_come_together_so_that_a_small_pool_computes_it_once() -> None:
    engine = engine_of(60, max_batch_size=4)
    documents = [[1000 * d + i for i in range(64)] for d in range(10)]
    for number in range(100):  # questions about ten documents arrive by turns; the pool holds three of them
        engine.add(request(number, [*documents[number % 10], number], max_tokens=1, arrival=number * 1e-6))
    clock = engine._clock
    assert isinstance(clock, Clock)
    clock.now = 1.0
    drain(engine)
    recomputed = runner_of(engine).computed_tokens - (10 * 64 + 100)
    assert recomputed <= 100 // OLDEST_EVERY * 64, "but for the oldest's turns, each document runs once"
    assert engine.stats()["preemptions"] == 0


def test_a_shared_block_counts_once_and_a_piece_is_no_longer_than_the_context() -> None:
    engine = engine_of(max_batch_size=4)
    for number in range(4):
        engine.add(request(number, [1] * 16 + [number] * 5, max_tokens=10**6))
    for _ in range(3):
        step(engine)
    blocks = {block for item in engine._scheduler.running for block in item.block_ids}
    stats = engine.stats()
    assert 0 < stats["kv_empty"] < stats["kv_places"] <= 3 * len(blocks) * engine.runner.block_size
    assert stats["kv_contiguous"] <= 3 * 4 * engine.info.max_model_len
    assert stats["kv_contiguous_empty"] < stats["kv_contiguous"]


def test_the_figures_add_up() -> None:
    engine = engine_of(max_batch_size=4)
    for number in range(4):
        engine.add(request(number, [number] * 5, max_tokens=2))
    step(engine)
    stats = engine.stats()
    assert (stats["running"], stats["waiting"]) == (4, 0)
    assert (stats["kv_used_tokens"], stats["kv_wasted_tokens"]) == (20, 12)
    assert (stats["kv_places"], stats["kv_empty"]) == (32, 12)
    assert (stats["kv_contiguous"], stats["kv_contiguous_empty"]) == (28, 8)
    assert stats["blocks_free"] + stats["blocks_cached"] + stats["blocks_owned"] == stats["blocks_total"]
    drain(engine)
    stats = engine.stats()
    assert (stats["requests"], stats["finished"], stats["steps"]) == (4, 4, 2)
    assert (stats["prompt_tokens"], stats["completion_tokens"], stats["occupancy"]) == (20, 8, 1.0)
    assert all(isinstance(value, int | float) for value in stats.values())


def test_a_closed_engine_has_closed_its_runner() -> None:
    engine = engine_of()
    engine.close()
    assert runner_of(engine)._blocks == []


def test_a_prompt_without_tokens_fails_and_holds_up_nobody() -> None:
    engine = engine_of()
    for number, ids in enumerate(([5] * 20, [], [6] * 9)):
        engine.add(request(number, ids, max_tokens=4))
    ended = {}
    for _ in range(100):
        ended |= {output.request_id: output.error for output in engine.step() if output.finish_reason}
    assert not engine.has_work()
    assert {number: error and error[0] for number, error in ended.items()} == {0: None, 1: "EMPTY_PROMPT", 2: None}
    assert engine.stats()["failed_steps"] == 0
