"""A million requests through the packed engine over the fake runner: memory, blocks and books are at the end what they were early on."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest

from sparkinfer.config.settings import EngineSettings
from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.engine import PackedEngine
from sparkinfer.engine.fake_runner import FakeRunner
from sparkinfer.engine.sequence import Sequence
from sparkinfer.types import SamplingParams

NUM_BLOCKS, WAITING = 2_048, 1_000
SAMPLING = [SamplingParams(max_tokens=n) for n in (1, 2, 3)]


class Feed:
    """Requests without end: a shared beginning, texts of all lengths, some twice, some closed choices, some dropped in between."""

    def __init__(self, engine: PackedEngine) -> None:
        self._engine = engine
        self._draw = random.Random(3)
        self.sent = self.alive = 0

    def fill(self, total: int) -> None:
        """Keep so many requests waiting, until so many were sent in all."""
        while self.sent < total and self.alive < WAITING:
            length = self._draw.randint(1, 40)
            start = self._draw.randrange(1_000)
            self._engine.add(
                EngineRequest(
                    request_id=self.sent,
                    prompt_ids=(*range(24), *range(start, start + length)),
                    sampling=SAMPLING[self.sent % 3],
                    choices=((5,), (6, 7)) if self.sent % 10 == 0 else None,
                )
            )
            self.sent += 1
            self.alive += 1
            if self.sent % 50 == 0:
                self._engine.abort(self.sent - 1)
                self.alive -= 1

    def step(self) -> None:
        """One step of the engine."""
        self.alive -= sum(output.finish_reason is not None for output in self._engine.step())


def run(total: int) -> tuple[float, float]:
    """MiB that the process holds after a tenth of the requests and after all, the queue as long as ever; then it is run empty."""
    engine = PackedEngine(FakeRunner(NUM_BLOCKS, verify=False), EngineSettings(batch_timeout_ms=0))
    feed, held, before = Feed(engine), [], _num_sequences()
    for until in (total // 10, total):
        while feed.sent < until:
            feed.fill(until)
            feed.step()
        held.append(_resident_mib())
    assert _num_sequences() - before <= 3 * WAITING, "sequences that are done are held"
    while engine.has_work():
        feed.step()
    engine.check_integrity()
    stats = engine.stats()
    assert stats["requests"] == total
    assert stats["finished"] + stats["aborted"] == total
    assert stats["failed"] == 0
    assert feed.alive == 0
    return held[0], held[1]


def _num_sequences() -> int:
    gc.collect()
    return sum(type(thing) is Sequence for thing in gc.get_objects())


def _resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def test_a_queue_that_is_never_empty_forgets_what_is_done() -> None:
    run(30_000)


@pytest.mark.slow
def test_memory_is_flat_over_a_million_requests() -> None:
    early, late = run(1_000_000)
    print(f"{early:.0f} MiB after 100,000 requests, {late:.0f} MiB after 1,000,000")
    assert late - early < 20
