from __future__ import annotations

import random

from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.buckets import OLDEST_EVERY, WaitingQueue, bucket_of
from sparkinfer.engine.sequence import Sequence
from tests.support.engine_runs import request


def queue_of(*requests: EngineRequest, window: int = 100) -> WaitingQueue:
    queue = WaitingQueue(window=window)
    for asked in requests:
        queue.add(Sequence.from_request(asked))
    return queue


def admit_all(queue: WaitingQueue) -> list[int]:
    order = []
    while (sequence := queue.peek()) is not None:
        queue.admit(sequence)
        order.append(sequence.request_id)
    return order


def test_higher_priority_comes_first() -> None:
    queue = queue_of(request(0), request(1, priority=2), request(2, priority=1))
    assert admit_all(queue) == [1, 2, 0]


def test_among_equal_priorities_the_earliest_deadline_comes_first_and_none_comes_last() -> None:
    queue = queue_of(
        request(0), request(1, deadline=9.0), request(2, deadline=3.0), request(3, deadline=1.0, priority=-1)
    )
    assert admit_all(queue) == [2, 1, 0, 3]


def test_among_equals_the_oldest_comes_first() -> None:
    queue = queue_of(request(0, arrival=3.0), request(1, arrival=1.0), request(2, arrival=2.0))
    assert admit_all(queue)[0] == 1


def test_prompts_that_begin_alike_are_neighbours() -> None:
    a, b = [1] * 20, [2] * 20
    queue = queue_of(*(request(i, (a if i % 2 else b) + [i], arrival=i) for i in range(6)))
    assert admit_all(queue) in ([0, 2, 4, 1, 3, 5], [1, 3, 5, 0, 2, 4])


def test_a_longer_common_prefix_is_grouped_inside_a_shorter_one() -> None:
    prompts = {0: [1, 1, 1, 9], 1: [1, 2, 2, 1], 2: [1, 1, 1, 3], 3: [1, 2, 2, 3]}
    order = admit_all(queue_of(*(request(i, ids, arrival=i) for i, ids in prompts.items())))
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({0, 2}), frozenset({1, 3})}


def test_a_bucket_of_one_task_is_drained_before_the_next_is_begun() -> None:
    queue = queue_of(*(request(i, [i], task=i % 2, arrival=i) for i in range(6)))
    assert admit_all(queue) == [0, 2, 4, 1, 3, 5]


def test_short_and_long_prompts_are_different_buckets() -> None:
    short, long = Sequence.from_request(request(0, [1] * 5)), Sequence.from_request(request(1, [1] * 50))
    assert bucket_of(short) != bucket_of(long)
    assert bucket_of(short) == bucket_of(Sequence.from_request(request(2, [1] * 7)))


def test_a_bucket_being_drained_gives_way_to_a_higher_priority() -> None:
    queue = queue_of(request(0, task=1), request(1, task=1, arrival=1.0))
    queue.admit(queue.peek())  # type: ignore[arg-type]
    queue.add(Sequence.from_request(request(2, task=2, priority=1, arrival=2.0)))
    assert admit_all(queue) == [2, 1]


def test_only_the_window_is_grouped() -> None:
    queue = queue_of(*(request(i, [9 - i], arrival=i) for i in range(6)), window=2)
    assert admit_all(queue) == [1, 2, 3, 4, 5, 0], "of the two best-placed, the smaller id; never one further back"


def test_an_urgent_request_does_not_wait_for_room_in_the_window() -> None:
    queue = queue_of(*(request(i, arrival=i) for i in range(5)), window=2)
    queue.peek()
    queue.add(Sequence.from_request(request(9, priority=1, arrival=9.0)))
    assert queue.peek().request_id == 9  # type: ignore[union-attr]


def test_a_removed_request_is_not_shown_and_can_come_again() -> None:
    queue = queue_of(request(0), request(1, arrival=1.0))
    first = queue.peek()
    assert first is not None
    assert queue.remove(first)
    assert not queue.remove(first)
    assert queue.peek().request_id == 1  # type: ignore[union-attr]
    queue.add(first)
    assert len(queue) == 2
    assert admit_all(queue) == [0, 1]


def test_a_request_that_came_twice_is_admitted_once() -> None:
    queue = queue_of(request(0), request(1))
    again = queue.peek()
    assert again is not None
    for _ in range(3):
        queue.remove(again)
        queue.add(again)
    assert sorted(admit_all(queue)) == [0, 1]


def test_tokens_and_age_of_those_who_wait_are_known() -> None:
    queue = queue_of(request(0, [1] * 5, arrival=4.0), request(1, [1] * 7, arrival=3.0))
    assert (queue.num_tokens, queue.oldest_arrival()) == (12, 3.0)
    admit_all(queue)
    assert (queue.num_tokens, queue.oldest_arrival()) == (0, float("inf"))


def test_the_lowest_priority_is_admitted_though_higher_ones_never_stop_coming() -> None:
    queue = queue_of(request(0, priority=-5, arrival=0.0))
    for number in range(1, OLDEST_EVERY):
        queue.add(Sequence.from_request(request(number, priority=5, arrival=float(number))))
        admitted = queue.peek()
        assert admitted is not None
        assert admitted.request_id != 0
        queue.admit(admitted)
    queue.add(Sequence.from_request(request(99, priority=5, arrival=99.0)))
    aged = queue.peek()
    assert aged is not None
    assert aged.request_id == 0
    queue.admit(aged)
    assert aged.aged


def test_twenty_thousand_requests_leave_no_entry_behind() -> None:
    queue = WaitingQueue(window=64)
    shuffled = random.Random(0)
    for number in range(20_000):
        queue.add(Sequence.from_request(request(number, [shuffled.randrange(50)], arrival=float(number))))
        if number % 2:
            queue.admit(queue.peek())  # type: ignore[arg-type]
    entries = len(queue._backlog) + len(queue._by_age) + sum(map(len, queue._buckets.values()))
    assert entries < 4 * len(queue)
    admit_all(queue)
    assert len(queue._backlog) + len(queue._by_age) + sum(map(len, queue._buckets.values())) == 0
