"""What scheduling costs a token, from 1,000 to 100,000 requests: it must not grow with the queue.

The packed engine runs over the fake runner, so all CPU time is the scheduler's, the block pool's and the prefix cache's (and the
fake runner's own, measured apart and subtracted). All requests wait from the start: a shared instruction of 130 tokens, a text
of 20 to 200, 4 to 16 tokens out (short ones, so that admission weighs). A busy machine makes everything slower by turns, so a fixed piece of work runs between the
steps and the growth is of tokens' cost over that work's.

    python benchmarks/scheduler_growth.py [--requests 1000 10000 100000] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time

from sparkinfer.config.settings import EngineSettings
from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.engine import PackedEngine
from sparkinfer.engine.fake_runner import FakeRunner
from sparkinfer.engine.plan import StepPlan, StepResult
from sparkinfer.engine.sequence import Sequence
from sparkinfer.types import SamplingParams

INSTRUCTION = tuple(range(130))


class TimedRunner(FakeRunner):
    """A fake runner that knows how long it took itself, and draws without looking at the whole context."""

    seconds = 0.0

    def run(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        start = time.process_time()
        result = super().run(plan)
        self.seconds += time.process_time() - start
        return result

    def next_token(self, context: list[int], sequence: Sequence) -> int:
        """Some token."""
        return (31 * context[-1] + len(context)) % 30_000


def make_requests(count: int) -> list[EngineRequest]:
    """Reviews as the speed benchmark has them."""
    draw = random.Random(0)
    sampling = {n: SamplingParams(max_tokens=n) for n in range(4, 17)}
    return [
        EngineRequest(
            request_id=number,
            prompt_ids=INSTRUCTION + tuple(draw.randrange(30_000) for _ in range(draw.randint(20, 200))),
            sampling=sampling[draw.randint(4, 16)],
            arrival=number * 1e-6,
        )
        for number in range(count)
    ]


def fixed_work() -> float:
    """Seconds that a fixed piece of Python takes now."""
    start = time.process_time()
    sum(i * i for i in range(5_000))
    return time.process_time() - start


def measure(count: int, *, num_blocks: int) -> dict[str, float]:
    """Run so many requests; microseconds a token and what else tells whether it stays flat."""
    requests = make_requests(count)
    runner = TimedRunner(num_blocks, verify=False)
    engine = PackedEngine(runner, EngineSettings())
    start = time.process_time()
    for request in requests:
        engine.add(request)
    added = time.process_time() - start
    works: list[float] = []
    while engine.has_work():
        engine.step()
        works.append(fixed_work())
    seconds = time.process_time() - start - runner.seconds - sum(works)
    engine.check_integrity()
    stats = engine.stats()
    return {
        "requests": count,
        "steps": stats["steps"],
        "completion_tokens": stats["completion_tokens"],
        "add_us_per_request": 1e6 * added / count,
        "us_per_token": 1e6 * seconds / stats["completion_tokens"],
        "work_per_token": seconds / stats["completion_tokens"] / (sum(works) / len(works)),
        "us_per_step": 1e6 * seconds / stats["steps"],
        "batch": stats["batched"] / stats["steps"],
        "cached_share": stats["cached_tokens"] / stats["prompt_tokens"],
        "preemptions": stats["preemptions"],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Print a line for each number of requests, and how much a token costs at the end over the start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--blocks", type=int, default=8_192)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for count in arguments.requests:
        rows.append(measure(count, num_blocks=arguments.blocks))
        if not arguments.json:
            print("  ".join(f"{name} {value:,.4g}" for name, value in rows[-1].items()), flush=True)
    growth = rows[-1]["work_per_token"] / rows[0]["work_per_token"]
    print(
        json.dumps({"rows": rows, "growth": growth})
        if arguments.json
        else f"a token costs {growth:.2f} times as much at the end"
    )


if __name__ == "__main__":
    main()
