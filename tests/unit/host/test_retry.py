"""Rows that fail for a reason that may pass: again after a pause, not for ever, and nobody waits for them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from sparkinfer.config.settings import EngineSettings
from sparkinfer.engine.engine import PackedEngine
from sparkinfer.engine.fake import FakeEngine
from sparkinfer.engine.fake_runner import FakeRunner
from sparkinfer.host.retry import JITTER, Backoff, RetryQueue
from sparkinfer.host.work import Work
from sparkinfer.types import SamplingParams
from tests.support.engine_runs import Clock
from tests.support.engines import TASK, eventually, row
from tests.support.services import Inbox, ask, service_of


def work(number: int) -> Work:
    return Work(number, bytes([number]), None, row(number), 1, True, [])  # type: ignore[arg-type]


def test_only_what_may_pass_is_tried_again_and_only_so_often() -> None:
    backoff = Backoff(3, 1.0)
    assert [backoff.allows("OUT_OF_MEMORY", retries) for retries in range(5)] == [True, True, True, False, False]
    assert not any(
        backoff.allows(code, 0) for code in ("PROMPT_TOO_LONG", "POISON_ROW", "INVALID_PARAMS", "no such code")
    )
    assert not Backoff(0, 1.0).allows("INFERENCE_FAILED", 0)


def test_the_pauses_double_and_their_jitter_is_the_rows_own() -> None:
    backoff = Backoff(3, 1.0)
    for retry, middle in ((1, 1.0), (2, 2.0), (3, 4.0)):
        pauses = [backoff.pause_s(bytes([n]), retry) for n in range(100)]
        assert all(middle * (1 - JITTER) <= pause <= middle * (1 + JITTER) for pause in pauses)
        assert len(set(pauses)) == 100
        assert pauses == [Backoff(3, 1.0).pause_s(bytes([n]), retry) for n in range(100)]
    assert Backoff(3, 0.0).pause_s(b"x", 3) == 0.0


def test_work_leaves_the_queue_when_it_is_due_and_not_before() -> None:
    clock = Clock()
    retries = RetryQueue(clock)
    assert retries.next_s() is None
    late, early, dropped = work(1), work(2), work(3)
    retries.put(late, pause_s=4.0)
    retries.put(early, pause_s=1.0)
    retries.put(dropped, pause_s=0.5)
    assert retries.drop(3)
    assert not retries.drop(3)
    assert (len(retries), retries.next_s()) == (2, 1.0)
    clock.now = 0.9
    assert retries.take_due() == []
    clock.now = 1.0
    assert retries.take_due() == [early]
    clock.now = 9.0
    assert (retries.next_s(), retries.take_due(), retries.next_s()) == (0.0, [late], None)


@pytest.mark.parametrize(("probability", "retries"), [(0.5, 3), (0.3, 1), (0.7, 0)])
def test_the_measured_success_is_the_one_that_the_probability_gives(probability: float, retries: int) -> None:
    num_rows = 2000
    with service_of(FakeEngine(f"fake:?flaky={probability}&seed=1"), backoff=Backoff(retries, 0.0)) as service:
        answers = ask(service, [row(n) for n in range(num_rows)])
        stats = service.stats()
    expected = 1 - probability ** (retries + 1)
    deviation = math.sqrt(expected * (1 - expected) / num_rows)
    measured = sum(answer.ok for answer in answers.values()) / num_rows
    print(f"p={probability} r={retries}: measured {measured:.4f}, expected {expected:.4f} +- {deviation:.4f}")
    assert abs(measured - expected) < 4 * deviation
    attempts = Counter(answer.attempts for answer in answers.values())
    assert set(attempts) == set(range(1, retries + 2))
    assert all(answer.ok or answer.attempts == retries + 1 for answer in answers.values())
    assert stats["requests"] == sum(count * number for number, count in attempts.items())
    assert stats["retries"] == stats["requests"] - num_rows


def test_a_row_that_waits_for_its_next_attempt_holds_nobody_up() -> None:
    with service_of(FakeEngine("fake:?fail=broken"), backoff=Backoff(3, 3600.0)) as service:
        inbox = Inbox()
        session = service.open(TASK, inbox)
        service.submit(session, [row(0, "broken"), *(row(n) for n in range(1, 100))])
        assert sorted(inbox.take(99)) == list(range(1, 100))
        service.submit(session, [row(n) for n in range(100, 200)])
        assert len(inbox.take(100)) == 100
        assert service.gauges()["waiting"] == 1
        service.close(session)  # nobody wants it any longer
        eventually(lambda: service.gauges()["waiting"] == 0)
        assert service.stats()["in_flight"] == 0


def test_a_permanent_failure_is_not_tried_again() -> None:
    with service_of(FakeEngine("fake:?refuse=never")) as service:
        answers = ask(service, [row(0, "never"), row(1)])
        assert (answers[0].error_code, answers[0].attempts, answers[1].ok) == ("INVALID_MESSAGES", 1, True)
        assert service.stats()["requests"] == 2


def test_twins_of_a_row_that_is_tried_again_get_its_answer() -> None:
    with service_of(FakeEngine("fake:?flaky=0.5&seed=3"), backoff=Backoff(50, 0.0)) as service:
        task = replace(TASK, sampling=SamplingParams(logprobs=0))
        answers = ask(service, [row(n, f"text {n % 10}") for n in range(40)], task=task)
    texts = {answer.result for answer in answers.values()}
    assert len(texts) == 10
    assert all(len(answer.logprobs or ()) == len((answer.result or "").encode()) for answer in answers.values())


def test_a_device_without_memory_halves_the_steps_and_they_grow_again() -> None:
    runner = FakeRunner(512, block_size=4, vocabulary=100, memory_tokens=40)
    engine = PackedEngine(runner, EngineSettings(block_size=4, batch_timeout_ms=0, max_batch_tokens=256))
    task = replace(TASK, sampling=SamplingParams(max_tokens=4))
    with service_of(engine) as service:
        answers = ask(service, [row(n) for n in range(60)], task=task)
        assert all(answer.ok and answer.attempts == 1 for answer in answers.values())
        assert service.stats()["failed_steps"] > 0
        assert max(sum(tokens for _, tokens in plan) for plan in runner.plans) <= 40
        runner._memory_tokens = None  # the neighbour that had the memory is gone
        runner.plans.clear()
        ask(service, [row(n) for n in range(100, 500)], task=task)
        assert max(sum(tokens for _, tokens in plan) for plan in runner.plans) > 200


def test_a_row_that_has_no_memory_even_alone_is_tried_again_and_then_fails_by_its_code() -> None:
    engine = PackedEngine(
        FakeRunner(64, block_size=4, memory_tokens=0), EngineSettings(block_size=4, batch_timeout_ms=0)
    )
    with service_of(engine) as service:
        answer = ask(service, [row(1)])[1]
    assert (answer.error_code, answer.attempts) == ("OUT_OF_MEMORY", 4)
