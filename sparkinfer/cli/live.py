"""A running job for people to watch: a bar on a terminal, one line every few seconds elsewhere, one line renewed in notebooks.

No event loop anywhere: the job's own reporter thread calls, each call draws.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from sparkinfer.job.progress import Progress

if TYPE_CHECKING:
    from sparkinfer.job.progress import OnProgress

#: Plain lines come at most so often, and no line is said again before the second time is over.
PLAIN_EVERY_S = 5.0
PLAIN_AGAIN_S = 15.0
#: Share of the rows before which rates are chance.
RATE_AFTER = 0.05
#: A start that takes longer than this is most likely a machine's first one.
FIRST_START_S = 30.0
#: The job's phases for people; before the first answer the engine is being started.
PHASES = {
    "reading": "comparing the source with the result table",
    "staging": "preparing the rows while the engine starts",
    "answering": "answering",
    "done": "done",
}


@contextlib.contextmanager
def watch(people: Console, *, clock: Callable[[], float] = time.monotonic) -> Iterator[OnProgress]:
    """Something to give to ``run(on_progress=...)`` that draws onto this console (or the notebook's output)."""
    if in_notebook():
        yield _notebook()
    elif people.is_terminal:
        with _bar(people) as draw:
            yield draw
    else:
        yield PlainLines(people, clock=clock)


def describe(progress: Progress) -> str:
    """One look at a job in words."""
    if progress.phase != "answering" or not progress.rows_total:
        return PHASES.get(progress.phase, progress.phase)
    if not progress.rows_done:
        slow = (
            " (a first start prepares the model and compiles kernels, once)" if progress.seconds > FIRST_START_S else ""
        )
        return f"starting the engine, {progress.rows_total} rows to do{slow}"
    failed = [f"{progress.rows_failed} failed"] if progress.rows_failed else []
    if progress.rows_done >= progress.rows_total:
        written = f"{progress.buckets_done} of {progress.buckets_total} parts are in the table"
        return ", ".join([f"all {progress.rows_total} rows answered", *failed, written])
    now = f"{progress.running} running, {progress.waiting} waiting"
    return ", ".join([f"{progress.rows_done}/{progress.rows_total} rows", *failed, *_rates(progress), now])


def _rates(progress: Progress) -> list[str]:
    """Rates and the time left, once enough rows are answered to tell them by."""
    if progress.rows_done < RATE_AFTER * progress.rows_total:
        return []
    rates = [f"{progress.rows_per_second:.1f} rows/s", f"{progress.tokens_per_second:.0f} tokens/s"]
    left = [] if progress.eta_seconds is None else [f"{clock_time(progress.eta_seconds)} left"]
    return [*rates, *left]


def clock_time(seconds: float) -> str:
    """Seconds as ``0:01:05``."""
    return str(timedelta(seconds=round(seconds)))


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this (Databricks notebooks are one)."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


class PlainLines:
    """A line every few seconds while something changes, at each new phase, and now and then where nothing moves."""

    def __init__(
        self,
        people: Console,
        *,
        every_s: float = PLAIN_EVERY_S,
        again_s: float = PLAIN_AGAIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._people = people
        self._every_s = every_s
        self._again_s = again_s
        self._clock = clock
        self._phase = ""
        self._words = ""
        self._said = 0.0

    def __call__(self, progress: Progress) -> None:
        """Print the line if it is time."""
        now, words = self._clock(), describe(progress)
        wait = self._again_s if words == self._words else self._every_s
        if progress.phase == self._phase and now < self._said + wait:
            return
        self._phase, self._words, self._said = progress.phase, words, now
        self._people.print(f"{clock_time(progress.seconds)}  {words}")


_NOTHING_YET = Progress(phase="reading")


class LastLook:
    """Keeps the last look at a job, for when it is stopped."""

    def __init__(self) -> None:
        self.progress: Progress | None = None

    def through(self, draw: OnProgress) -> OnProgress:
        """The same display, remembered on its way."""

        def keep(progress: Progress) -> None:
            self.progress = progress
            draw(progress)

        return keep

    def what_is_left(self, table: str) -> str:
        """What stands in the table and what does not, in one line."""
        return (self.progress or _NOTHING_YET).what_is_left(table)

    def to_dict(self) -> dict[str, Any]:
        """The last look, for ``--json``."""
        return (self.progress or _NOTHING_YET).to_dict()


@contextlib.contextmanager
def _bar(people: Console) -> Iterator[OnProgress]:
    columns = (
        SpinnerColumn(),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[elapsed]}  {task.description}"),
    )
    with Bar(*columns, console=people, transient=True) as bar:
        task = bar.add_task("", total=None, elapsed="")

        def draw(progress: Progress) -> None:
            bar.update(
                task,
                description=describe(progress),
                elapsed=clock_time(progress.seconds),
                total=progress.rows_total or None,
                completed=progress.rows_done,
            )

        yield draw


def _notebook() -> OnProgress:
    from IPython.display import display

    handle = display({"text/plain": ""}, raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def draw(progress: Progress) -> None:
        handle.update({"text/plain": f"{clock_time(progress.seconds)}  {describe(progress)}"}, raw=True)

    return draw
