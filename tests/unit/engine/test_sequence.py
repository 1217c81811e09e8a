from __future__ import annotations

from sparkinfer.engine.plan import PlannedSequence, StepPlan
from sparkinfer.engine.sequence import Sequence, SequenceStatus
from tests.support.engine_runs import request


def test_a_new_sequence_waits_with_its_prompt_and_nothing_else() -> None:
    sequence = Sequence.from_request(request(3, (4, 5, 6)))
    assert (sequence.request_id, sequence.token_ids, sequence.num_prompt) == (3, [4, 5, 6], 3)
    assert (sequence.generated, sequence.num_generated, sequence.num_uncomputed) == ([], 0, 3)
    assert sequence.status is SequenceStatus.WAITING


def test_generated_ids_follow_the_prompt() -> None:
    sequence = Sequence.from_request(request(0, (4, 5)))
    sequence.token_ids += [7, 8]
    sequence.num_computed = 3
    assert (sequence.generated, sequence.num_generated, sequence.num_uncomputed) == ([7, 8], 2, 1)


def test_rank_is_priority_then_deadline_then_age_then_number() -> None:
    ranked = [
        request(5, priority=1, deadline=1.0),
        request(4, priority=1),
        request(3, deadline=1.0, arrival=9.0),
        request(2, deadline=2.0),
        request(0, arrival=1.0),
        request(1, arrival=1.0),
        request(6, priority=-1, deadline=0.0),
    ]
    sequences = [Sequence.from_request(one) for one in ranked]
    assert sorted(sequences, key=lambda s: s.rank) == sequences


def test_one_that_waited_longest_outranks_every_priority() -> None:
    aged, urgent = Sequence.from_request(request(0, priority=-9)), Sequence.from_request(request(1, priority=9))
    aged.aged = True
    assert aged.rank < urgent.rank


def test_a_plan_counts_its_tokens_and_decodes() -> None:
    sequence = Sequence.from_request(request(0, range(10)))
    plan = StepPlan(
        [
            PlannedSequence(sequence, 9, 1, True),
            PlannedSequence(sequence, 0, 4, False),
            PlannedSequence(sequence, 4, 1, False),
        ]
    )
    assert (plan.num_tokens, plan.num_decodes) == (6, 1)
