"""However requests arrive, are batched, chunked, cached, preempted or aborted, each gets the tokens it gets alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.engine.base import EngineRequest
from tests.support.engine_runs import answer_of, drain, engine_of, expected_answer, request, runner_of, step

VOCABULARY = 12  # few ids, so that stop ids are met and answers begin alike


@dataclass
class Plan:
    """A generated run: what arrives before which step, and what is aborted or finished before which step."""

    requests: list[EngineRequest]
    arrivals: list[int]
    aborts: dict[int, list[int]] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)


prefixes = st.sampled_from([[], [7, 7, 7, 7, 7, 7, 7, 7], [7, 7, 7, 7, 1, 2, 3, 4, 5, 6, 7, 8], [5] * 17])
tails = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=9)
choices = st.none() | st.just(((1, 2), (1, 3), (4,), (1, 2, 5)))


@st.composite
def requests(draw: st.DrawFn, request_id: int) -> EngineRequest:
    closed = draw(choices)
    return request(
        request_id,
        draw(prefixes) + draw(tails),
        max_tokens=draw(st.integers(1, 12)),
        stop_ids=draw(st.sets(st.integers(0, VOCABULARY - 1), max_size=2)) if closed is None else {0},
        choices=closed,
        noise_key=draw(st.integers(0, 3)),
        task=draw(st.integers(0, 2)),
        priority=draw(st.integers(0, 2)),
        deadline=draw(st.none() | st.floats(0, 9)),
        arrival=draw(st.floats(-5, 0)),
    )


@st.composite
def plans(draw: st.DrawFn, *, tiny_pool: bool) -> Plan:
    block_size = draw(st.sampled_from([1, 2, 3, 4, 16]))
    asked = [draw(requests(i)) for i in range(draw(st.integers(1, 12)))]
    longest = max(len(r.prompt_ids) + max(r.sampling.max_tokens, 3) for r in asked)
    fits = -(-longest // block_size)
    aborts: dict[int, list[int]] = {}
    for request_id in draw(st.sets(st.integers(0, len(asked) - 1), max_size=4)):
        aborts.setdefault(draw(st.integers(0, 12)), []).append(request_id)
    options = {
        "num_blocks": fits + draw(st.integers(0, 2 * fits)) if tiny_pool else 12 * fits,
        "block_size": block_size,
        "max_batch_size": draw(st.integers(1, 8)),
        "max_batch_tokens": draw(st.integers(1, 40)),
        "window": draw(st.integers(1, 8)),
        "prefix_cache": draw(st.booleans()),
        "guess_tokens": draw(st.integers(0, 20)),
        "vocabulary": draw(st.sampled_from([2, 3, VOCABULARY])),  # of few ids guesses are often right
    }
    return Plan(asked, [draw(st.integers(0, 6)) for _ in asked], aborts, options)


def run_and_compare(plan: Plan) -> dict[str, float]:
    engine = engine_of(**plan.options)  # type: ignore[arg-type]
    outputs: dict[int, list] = {}
    aborted = {request_id for ids in plan.aborts.values() for request_id in ids}
    for number in range(14):
        for asked, arrival in zip(plan.requests, plan.arrivals, strict=True):
            if arrival == number:
                engine.add(asked)
        if number % 3 == 0:
            engine.running_ids()  # plans ahead; what is aborted now is in the plan
        for request_id in plan.aborts.get(number, []):
            (engine.abort if request_id % 2 else engine.finish)(request_id)
        for output in step(engine):
            outputs.setdefault(output.request_id, []).append(output)
    for request_id, rest in drain(engine).items():
        outputs.setdefault(request_id, []).extend(rest)
    for asked in plan.requests:
        got, want = outputs.get(asked.request_id), expected_answer(asked, runner_of(engine))
        if asked.request_id in aborted:  # it may have been added after the abort, or have ended before it
            ids, _ = answer_of(got) if got else ((), None)
            assert ids == want[0][: len(ids)]
        else:
            assert got is not None
            assert got[-1].error is None, got[-1].error
            assert answer_of(got) == want
            assert all(output.finish_reason is None for output in got[:-1])
            assert len({output.cached_tokens for output in got}) == 1, "cached_tokens is final with the first output"
    stats = engine.stats()
    assert stats["blocks_owned"] == 0
    assert stats["waiting"] == stats["running"] == 0
    assert stats["requests"] == stats["finished"] + stats["aborted"]
    return stats


@settings(max_examples=200, deadline=None)
@given(plans(tiny_pool=False))
def test_every_request_gets_the_tokens_it_gets_alone(plan: Plan) -> None:
    run_and_compare(plan)


@settings(max_examples=200, deadline=None)
@given(plans(tiny_pool=True))
def test_preemption_in_a_pool_that_barely_holds_one_changes_no_token(plan: Plan) -> None:
    run_and_compare(plan)
