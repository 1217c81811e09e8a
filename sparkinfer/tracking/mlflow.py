"""One MLflow run per job, written by the driver through a client of its own.

All of MLflow (its import alone takes seconds) happens on one background thread while the job works: ``start`` and
``progress`` only queue, ``finish`` waits for the queue with a limit. Whatever goes wrong there is logged as a warning and
kept in ``warnings``; no exception reaches the job, and a dead server costs it seconds. The user's own MLflow state (active
run, tracking URI, experiment) is read, never changed; where the user has a run open, the job's run becomes its child.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping

from sparkinfer.tracking import store
from sparkinfer.tracking.base import JobFacts, JobOutcome
from sparkinfer.tracking.redact import redact_text
from sparkinfer.tracking.run import OpenRun, open_run

_LOG = logging.getLogger(__name__)

SAMPLE_ROWS = 20
FINISH_TIMEOUT_S = 60.0
PROGRESS_QUEUE = 64
MAX_REASON_CHARS = 300


class MlflowTracker:
    """See the module's docstring; implements :class:`sparkinfer.tracking.base.Tracker`.

    Args:
        sample_rows: at most so many result rows are logged as a table; 0 logs none.
        finish_timeout_s: how long finish() waits for the store.
    """

    def __init__(self, *, sample_rows: int = SAMPLE_ROWS, finish_timeout_s: float = FINISH_TIMEOUT_S) -> None:
        self.warnings: list[str] = []
        self._sample_rows = sample_rows
        self._finish_timeout_s = finish_timeout_s
        self._facts: JobFacts | None = None
        self._run: OpenRun | None = None
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="sparkinfer-mlflow", daemon=True)

    @property
    def run_id(self) -> str | None:
        """The run's id, as soon as the store has answered."""
        return None if self._run is None else self._run.run_id

    def start(self, facts: JobFacts) -> str | None:
        """Open the run in the background; its id stands in ``run_id`` once the store has answered."""
        self._facts = facts
        parent = store.active_parent()  # an active run belongs to the calling thread
        self._tasks.put(lambda: self._open(facts, parent))
        self._thread.start()
        return None

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue the figures; where the store is too slow to keep up they are left out."""
        if self._tasks.qsize() < PROGRESS_QUEUE:
            now_ms = int(time.time() * 1000)
            copied = dict(metrics)
            self._tasks.put(lambda: self._progress(step, copied, now_ms))

    def finish(self, outcome: JobOutcome) -> str | None:
        """Write the outcome and wait for the store, but not for ever."""
        if self._facts is None:
            return None
        facts = self._facts
        self._tasks.put(lambda: self._close(facts, outcome))
        self._tasks.put(None)
        self._thread.join(self._finish_timeout_s)
        if self._thread.is_alive():
            self._warn("the run is not complete", f"no answer within {self._finish_timeout_s:g} s")
        return self.run_id

    # What follows runs on the background thread.

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception as error:  # tracking never fails a job
                self._warn("the job has no complete run", error)

    def _open(self, facts: JobFacts, parent: store.ParentRun | None) -> None:
        self._run = open_run(facts, parent, self._warn)
        self._run.log_facts(facts)

    def _progress(self, step: int, metrics: Mapping[str, float], timestamp_ms: int) -> None:
        if self._run is not None:
            self._run.log_metrics(metrics, step=step, timestamp_ms=timestamp_ms)

    def _close(self, facts: JobFacts, outcome: JobOutcome) -> None:
        if self._run is not None:
            self._run.log_outcome(facts, outcome, sample_rows=self._sample_rows)

    def _warn(self, what: str, why: Exception | str) -> None:
        reason = redact_text(str(why))[:MAX_REASON_CHARS]
        text = f"MLflow: {what} ({reason}). The job is not affected; check tracking_uri or MLFLOW_TRACKING_URI."
        self.warnings.append(text)
        _LOG.warning("%s", text)
