"""What an application's processes hold, sampled while it works, and whether it grew."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field

import psutil

from tests.support.leftovers import engines

ROLES = {"java": "driver JVM", "pyspark.daemon": "Python workers", "sparkinfer.host": "engine"}
DRIVER = "driver"
#: What is counted of each role; of several processes the sum.
MEASURES = ("MiB", "threads", "file descriptors")
#: Growth from the second quarter of the samples to the last that is none: an allocator's slack, a thread that comes and goes.
ALLOWED = {"MiB": 24.0, "threads": 4.0, "file descriptors": 8.0}
#: The JVM's heap is bounded by its own limit and filled up to it before it is cleared.
ALLOWED_JVM_MIB = 300.0


@dataclass
class Watch:
    """Samples of one application.

    Args:
        pid: of its driver.
    """

    pid: int
    samples: dict[str, list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))

    def look(self) -> None:
        """Take one sample of every role."""
        held: dict[str, dict[str, float]] = {}
        for process in self._processes():
            try:
                role = _role(process, self.pid)
                with process.oneshot():
                    now = (process.memory_info().rss / 2**20, process.num_threads(), process.num_fds())
            except psutil.Error:
                continue
            sums = held.setdefault(role, dict.fromkeys(MEASURES, 0.0))
            for name, value in zip(MEASURES, now, strict=True):
                sums[name] += value
        for role, sums in held.items():
            self.samples[role].append({"time": time.time(), **sums})

    def growth(self) -> dict[tuple[str, str], tuple[float, float]]:
        """(role, measure) -> medians of the second and of the last quarter of its samples."""
        found = {}
        for role, samples in self.samples.items():
            quarter = max(1, len(samples) // 4)
            for name in MEASURES:
                early = [sample[name] for sample in samples[quarter : 2 * quarter] or samples]
                late = [sample[name] for sample in samples[-quarter:]]
                found[role, name] = (statistics.median(early), statistics.median(late))
        return found

    def _processes(self) -> list[psutil.Process]:
        try:
            driver = psutil.Process(self.pid)
            found = [driver, *driver.children(recursive=True), *(psutil.Process(engine.pid) for engine in engines())]
        except psutil.Error:  # one ended just now: the next look sees the others
            return []
        return list({process.pid: process for process in found}.values())


def allowed(role: str, measure: str) -> float:
    """How much more the last quarter may hold than the second."""
    return ALLOWED_JVM_MIB if (role, measure) == ("driver JVM", "MiB") else ALLOWED[measure]


def table(growth: dict[tuple[str, str], tuple[float, float]]) -> str:
    """Markdown: a line a role and measure."""
    lines = ["| process | what | second quarter | last quarter | may grow by |", "|---|---|--:|--:|--:|"]
    for (role, measure), (early, late) in sorted(growth.items()):
        lines.append(f"| {role} | {measure} | {early:.0f} | {late:.0f} | {allowed(role, measure):.0f} |")
    return "\n".join(lines)


def _role(process: psutil.Process, driver: int) -> str:
    if process.pid == driver:
        return DRIVER
    command = " ".join(process.cmdline())
    return next((role for marker, role in ROLES.items() if marker in command), "other")
