from __future__ import annotations

import pytest

from sparkinfer.engine.fake_runner import FakeRunner, WrongBlockTable
from sparkinfer.engine.plan import PlannedSequence, StepPlan
from sparkinfer.engine.sequence import Sequence
from tests.support.engine_runs import request


def sequence_of(request_id: int, ids: list[int], blocks: list[int], **fields: object) -> Sequence:
    sequence = Sequence.from_request(request(request_id, ids, **fields))  # type: ignore[arg-type]
    sequence.block_ids = blocks
    return sequence


def prefill(sequence: Sequence) -> StepPlan:
    length = len(sequence.token_ids)
    return StepPlan([PlannedSequence(sequence, sequence.num_computed, length - sequence.num_computed, True)])


def test_the_next_token_depends_on_every_token_before_it() -> None:
    tokens = set()
    for first in range(5):
        runner = FakeRunner(4, block_size=4)
        result = runner.run(prefill(sequence_of(0, [first, 2, 3, 4, 5], [2, 0])))
        tokens.add(result.tokens[0].token_id)
    assert len(tokens) == 5


def test_blocks_may_lie_anywhere() -> None:
    runner = FakeRunner(8, block_size=2)
    one = runner.run(prefill(sequence_of(0, [1, 2, 3], [0, 1])))
    other = runner.run(prefill(sequence_of(1, [1, 2, 3], [7, 3])))
    assert one == other


def test_a_context_that_another_sequence_overwrote_is_noticed() -> None:
    runner = FakeRunner(4, block_size=4)
    first = sequence_of(0, [1, 2, 3], [0])
    runner.run(prefill(first))
    runner.run(prefill(sequence_of(1, [7, 8, 9], [0])))
    first.num_computed = 3
    first.token_ids.append(4)
    with pytest.raises(WrongBlockTable, match="request 0 hold"):
        runner.run(prefill(first))


def test_a_prefix_that_was_never_computed_is_noticed() -> None:
    runner = FakeRunner(4, block_size=2)
    sequence = sequence_of(0, [1, 2, 3], [0, 1])
    sequence.num_computed = 2
    with pytest.raises(WrongBlockTable):
        runner.run(prefill(sequence))


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        ((0, 5, True), "no block for a token"),
        ((1, 2, False), "does not begin where"),
        ((0, 2, True), "middle of a prompt"),
        ((0, 0, False), "an empty chunk"),
    ],
)
def test_a_plan_that_breaks_the_rules_is_refused(item: tuple[int, int, bool], complaint: str) -> None:
    sequence = sequence_of(0, [1, 2, 3, 4, 5], [0])
    start, num_tokens, samples = item
    with pytest.raises(AssertionError, match=complaint):
        FakeRunner(4, block_size=4).run(StepPlan([PlannedSequence(sequence, start, num_tokens, samples)]))


def test_only_choices_come_out() -> None:
    runner = FakeRunner(4, block_size=4)
    sequence = sequence_of(0, [1, 2], [0], choices=((5, 6), (7,)), stop_ids=[2])
    assert runner.run(prefill(sequence)).tokens[0].token_id in (5, 7)


def test_logprobs_come_where_asked_for() -> None:
    runner = FakeRunner(4, block_size=4)
    assert runner.run(prefill(sequence_of(0, [1], [0]))).tokens[0].logprob is None
    assert runner.run(prefill(sequence_of(0, [1], [1], logprobs=0))).tokens[0].logprob == -1.0


def test_faults_come_as_asked() -> None:
    with pytest.raises(MemoryError):
        FakeRunner(4, block_size=4, memory_tokens=2).run(prefill(sequence_of(0, [1, 2, 3], [0])))
    with pytest.raises(RuntimeError, match="poisoned"):
        FakeRunner(4, block_size=4, poison_id=2).run(prefill(sequence_of(0, [1, 2, 3], [0])))
    assert 0 in FakeRunner(4, block_size=4, nan_id=2).run(prefill(sequence_of(0, [1, 2, 3], [0]))).failed
