"""Where a job stands, once a second, from two sources: the buckets it committed and the engines' own counters.

Neither needs a Spark listener, so this works over Connect too. The numbers of the engines are live and may count an input
whose bucket is committed later; committed numbers are what is in the table.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparkinfer.job.counts import Counts

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One look at a running job.

    Attributes:
        phase: ``reading`` (the source is compared with the table), ``staging``, ``answering`` or ``done``.
        rows_total: rows that this run has to write; 0 while that is not known.
        rows_done: rows written or answered so far, the failed ones too.
        rows_failed: of them, rows with an error.
        buckets_total: buckets with rows to write.
        buckets_done: of them committed.
        prompt_tokens: tokens that the engines read so far.
        cached_tokens: of them, how many the prefix cache gave.
        completion_tokens: tokens that the engines wrote so far.
        running: requests in the engines' batches now.
        waiting: requests that wait in the engines now.
        seconds: since the job started.
        rows_per_second: over the time since the first row was answered.
        tokens_per_second: input and output, likewise.
        eta_seconds: until all rows are done at this rate, or None while there is none.
    """

    phase: str
    rows_total: int = 0
    rows_done: int = 0
    rows_failed: int = 0
    buckets_total: int = 0
    buckets_done: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    running: int = 0
    waiting: int = 0
    seconds: float = 0.0
    rows_per_second: float = 0.0
    tokens_per_second: float = 0.0
    eta_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values."""
        return asdict(self)

    def __str__(self) -> str:
        """One line, so that ``run(on_progress=print)`` says where the job is."""
        if not self.rows_total:
            return f"{self.seconds:.0f} s: {self.phase}"
        left = "" if self.eta_seconds is None else f", about {self.eta_seconds:.0f} s left"
        failed = f", {self.rows_failed} failed" if self.rows_failed else ""
        return (
            f"{self.seconds:.0f} s: {self.phase}, {self.rows_done} of {self.rows_total} rows{failed}, "
            f"{self.buckets_done} of {self.buckets_total} buckets committed{left}"
        )

    def what_is_left(self, table: str) -> str:
        """What stands in the table and what does not when the job is stopped here, in one sentence."""
        if not self.rows_total:
            return f"Stopped before the first row; {table} is as it was."
        return (
            f"Stopped with {self.buckets_done} of {self.buckets_total} buckets committed to {table}; "
            f"{max(0, self.rows_total - self.rows_done)} of {self.rows_total} rows were not answered yet."
        )


Counters = Callable[[], Sequence[dict[str, float]]]
OnProgress = Callable[[Progress], None]


class ProgressReporter:
    """Collects what a job did and tells it on a thread of its own until closed.

    Args:
        on_progress: called with each look; an exception of it is logged once and ends the calls, never the job.
        interval_s: seconds between two looks.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        on_progress: OnProgress | None,
        *,
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_progress = on_progress
        self._counters: Counters = tuple
        self._beat: Callable[[], None] = lambda: None
        self._interval_s = interval_s
        self._clock = clock
        self._started = clock()
        self._first_answer: float | None = None
        self._phase = "reading"
        self._rows_total = 0
        self._buckets = (0, 0)
        self._committed = Counts()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sparkinfer-progress", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def watch(self, counters: Counters, beat: Callable[[], None]) -> None:
        """Take the engines' counters from there, and call ``beat`` now and then, to say that the run lives."""
        self._counters, self._beat = counters, beat

    def phase(self, name: str) -> None:
        """The job went on to its next phase."""
        with self._lock:
            self._phase = name

    def expect(self, *, rows: int, buckets: int) -> None:
        """What this run has to do is known."""
        with self._lock:
            self._rows_total, self._buckets = rows, (0, buckets)

    def committed(self, counts: Counts) -> None:
        """A bucket is in the table."""
        with self._lock:
            self._committed += counts
            self._buckets = (self._buckets[0] + 1, self._buckets[1])

    def close(self) -> None:
        """Tell a last time and stop."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        self._tell()

    def look(self) -> Progress:
        """Where the job stands now; without the engines' counters where they cannot be read just now."""
        try:
            live = _summed(self._counters())
        except OSError as error:
            _LOG.info("The engines' counters could not be read: %s", error)
            live = {}
        now = self._clock()
        with self._lock:
            done = max(self._committed.rows, min(int(live.get("rows_done", 0)), self._rows_total))
            if done and self._first_answer is None:
                self._first_answer = now
            tokens = int(live.get("prompt_tokens", 0)), int(live.get("completion_tokens", 0))
            elapsed = now - (self._first_answer if self._first_answer is not None else now)
            rate = done / elapsed if elapsed > 0 else 0.0
            return Progress(
                phase=self._phase,
                rows_total=self._rows_total,
                rows_done=done,
                rows_failed=max(self._committed.failed, int(live.get("rows_failed", 0))),
                buckets_total=self._buckets[1],
                buckets_done=self._buckets[0],
                prompt_tokens=max(tokens[0], self._committed.paid_prompt_tokens),
                cached_tokens=int(live.get("cached_tokens", 0)),
                completion_tokens=max(tokens[1], self._committed.paid_completion_tokens),
                running=int(live.get("running", 0)),
                waiting=int(live.get("waiting", 0)),
                seconds=now - self._started,
                rows_per_second=rate,
                tokens_per_second=sum(tokens) / elapsed if elapsed > 0 else 0.0,
                eta_seconds=(self._rows_total - done) / rate if rate > 0 else None,
            )

    def _work(self) -> None:
        last_beat = self._clock()
        while not self._end.wait(self._interval_s):
            self._tell()
            if self._clock() - last_beat > 10 * self._interval_s:
                last_beat = self._clock()
                try:
                    self._beat()
                except OSError as error:
                    _LOG.warning("The job's file in staging could not be renewed: %s", error)

    def _tell(self) -> None:
        if self._on_progress is None:
            return
        try:
            self._on_progress(self.look())
        except Exception as error:  # a display must not end a job
            _LOG.warning("on_progress raised %s: %s; it is not called any more.", type(error).__name__, error)
            self._on_progress = None


def _summed(counters: Sequence[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for engine in counters:
        for name, value in engine.items():
            if isinstance(value, int | float):
                total[name] = total.get(name, 0) + value
    return total
