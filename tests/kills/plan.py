"""Which kill has which number: drawn from the seed and the number alone, so that a run adds up over several calls."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Where a block of kills runs -> what is killed in it. Kinds that end the application stand last: the others share it.
BLOCKS: dict[str, tuple[str, ...]] = {
    "local": (
        "engine",
        "worker",
        "engine stopped",
        "daemon",
        "engine",
        "worker",
        "engine",
        "driver",
        "driver JVM",
        "job",
    ),
    "local-cluster": (
        *("engine", "executor", "worker", "engine stopped", "executor"),
        *("daemon", "executor", "engine", "driver", "job"),
    ),
    "standalone": (
        *("engine", "executor", "standalone worker", "worker", "executor"),
        *("standalone worker", "engine stopped", "daemon", "driver", "job"),
    ),
}
#: Blocks in turn.
TURN = ("local", "local-cluster", "local", "standalone")
BLOCK = 10
#: When: while the first answers are made, inside a commit, or after one.
PHASES = ("before", "during", "after")


@dataclass(frozen=True)
class Kill:
    """One kill of the matrix.

    Attributes:
        number: of the kill.
        seed: of the matrix.
        setting: where it runs.
        kind: what is killed.
        phase: see :data:`PHASES`.
        commit: number of the commit that a phase other than ``before`` is about (1, 2, ...).
        share: how far the phase is when the process dies, 0 to 1.
    """

    number: int
    seed: int
    setting: str
    kind: str
    phase: str
    commit: int
    share: float


def kill_of(number: int, *, seed: int, buckets: int) -> Kill:
    """The kill with this number."""
    setting = TURN[number // BLOCK % len(TURN)]
    draw = random.Random(f"{seed}:{number}")
    return Kill(
        number=number,
        seed=seed,
        setting=setting,
        kind=BLOCKS[setting][number % BLOCK],
        phase=draw.choice(PHASES),
        commit=draw.randint(1, buckets - 1),
        share=draw.random(),
    )
