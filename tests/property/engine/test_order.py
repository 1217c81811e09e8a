"""The order of admission: rank decides, grouping never overrules urgency, and nobody starves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.buckets import OLDEST_EVERY, WaitingQueue
from sparkinfer.engine.sequence import Sequence
from tests.support.engine_runs import request

asked = st.builds(
    lambda prompt, priority, deadline, task: (prompt, priority, deadline, task),
    st.lists(st.integers(0, 2), min_size=1, max_size=9),
    st.integers(-2, 2),
    st.none() | st.integers(0, 5),
    st.integers(0, 2),
)


def to_request(number: int, fields: tuple) -> EngineRequest:
    prompt, priority, deadline, task = fields
    return request(number, prompt, priority=priority, deadline=deadline, task=task, arrival=float(number))


@settings(max_examples=200, deadline=None)
@given(st.lists(asked, min_size=1, max_size=40), st.lists(st.booleans(), max_size=80), st.integers(1, 10))
def test_a_request_waits_for_a_bounded_number_of_admissions(
    arrivals: list[tuple], turns: list[bool], window: int
) -> None:
    """Whatever comes after it: OLDEST_EVERY admissions for each older request, and as many for itself."""
    queue = WaitingQueue(window=window)
    coming = [Sequence.from_request(to_request(n, fields)) for n, fields in enumerate(arrivals)]
    bound: dict[int, int] = {}
    admissions = 0
    for is_arrival in [*turns, *[True] * len(coming), *[False] * len(coming)]:
        if is_arrival and coming:
            sequence = coming.pop(0)
            bound[sequence.request_id] = admissions + OLDEST_EVERY * (len(queue) + 1)
            queue.add(sequence)
        elif (admitted := queue.peek()) is not None:
            queue.admit(admitted)
            admissions += 1
            assert admissions <= bound.pop(admitted.request_id)
    assert not bound, "somebody was never admitted"


@settings(max_examples=200, deadline=None)
@given(st.lists(asked, min_size=1, max_size=30), st.integers(1, 10))
def test_nobody_overtakes_a_more_urgent_request_but_the_oldest(arrivals: list[tuple], window: int) -> None:
    queue = WaitingQueue(window=window)
    waiting = {n: Sequence.from_request(to_request(n, fields)) for n, fields in enumerate(arrivals)}
    for sequence in waiting.values():
        queue.add(sequence)
    while (admitted := queue.peek()) is not None:
        urgency = admitted.urgency
        queue.admit(admitted)
        del waiting[admitted.request_id]
        overtaken = [other for other in waiting.values() if other.urgency < urgency]
        assert admitted.aged or not overtaken
        if admitted.aged:
            assert all(other.request.arrival > admitted.request.arrival for other in waiting.values())
