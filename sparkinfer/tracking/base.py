"""What a job tells the outside about itself: facts when it starts, figures on the way, an outcome at the end.

This module knows neither MLflow nor Spark. The job fills the facts; a tracker writes them down where it likes. A tracker
never raises for a store's sake: tracking that fails is a warning, never a failed job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from sparkinfer.types import ModelRef

#: What a sample row and a table cell can hold on its way into a tracker.
Scalar = str | int | float | bool | None


class RunStatus(str, Enum):
    """How a job ended."""

    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """One table of the job, as far as it is known without asking Spark.

    Attributes:
        name: for people, ``main.support.tickets`` or the last part of a path.
        source: table name or path, as a reader would open it; credentials in it are taken out by the tracker.
        format: ``delta | parquet | ... | dataframe``.
        version: Delta version, or None where the source has none.
        columns: column name to Spark type, in order.
        rows: number of rows, or None where nobody counted.
    """

    name: str
    source: str
    format: str
    version: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What is known before the first row is asked.

    Attributes:
        job: name for people, e.g. the result table's last part.
        run_key: the job's own run id, the ``run_id`` column of the rows that it writes.
        params: every setting that was used, as text.
        tags: free labels.
        model: the pinned model.
        config_hash: see :mod:`sparkinfer.hashing`.
        prompt: the template, or None where the one column is the user message.
        system: the system message, or None.
        source: the table that is read.
        output: the table that is written; its version here is the one before the job.
        experiment: MLflow experiment, or None for the user's default.
        tracking_uri: MLflow store, or None: what the user or the environment set, else a local sqlite file.
    """

    job: str
    run_key: str
    model: ModelRef
    config_hash: str
    source: DatasetFacts
    output: DatasetFacts
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    prompt: str | None = None
    system: str | None = None
    experiment: str | None = None
    tracking_uri: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What came of it.

    Attributes:
        status: finished (also with failed rows), failed, or killed by a signal or deadline.
        metrics: final figures by name: ``rows``, ``failed``, ``prompt_tokens``, ``seconds``, ``rows_per_second`` ...
        failures: failed rows by error code.
        samples: a few result rows, column to value.
        output_version: Delta version of the result table after the last commit.
        error: ``[CODE] sentence`` where the job failed.
    """

    status: RunStatus
    metrics: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    samples: tuple[Mapping[str, Scalar], ...] = ()
    output_version: int | None = None
    error: str | None = None


class Tracker(Protocol):
    """Where a job's facts go. One job, one tracker: start, any number of progress calls, finish."""

    def start(self, facts: JobFacts) -> str | None:
        """Open the run. May return before the store has answered; None where the run's id is not known (yet)."""

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note figures on the way. Never blocks.

        Args:
            step: rises from call to call, e.g. buckets committed.
            metrics: figures by name.
        """

    def finish(self, outcome: JobOutcome) -> str | None:
        """Write the outcome and close the run.

        Returns:
            The run's id, or None where nothing could be written.
        """


class NullTracker:
    """Tracks nothing; for jobs with tracking switched off."""

    def start(self, facts: JobFacts) -> str | None:
        """Nothing to open."""

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing to note."""

    def finish(self, outcome: JobOutcome) -> str | None:
        """Nothing to close."""


class RecordingTracker:
    """Keeps what it was told: the public stand-in for tests and dry runs.

    Args:
        run_id: the id that start() and finish() give.
    """

    def __init__(self, run_id: str = "recorded-run") -> None:
        self.run_id = run_id
        self.facts: list[JobFacts] = []
        self.steps: list[tuple[int, dict[str, float]]] = []
        self.outcomes: list[JobOutcome] = []

    def start(self, facts: JobFacts) -> str | None:
        """Remember the facts."""
        self.facts.append(facts)
        return self.run_id

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        """Remember the figures."""
        self.steps.append((step, dict(metrics)))

    def finish(self, outcome: JobOutcome) -> str | None:
        """Remember the outcome."""
        self.outcomes.append(outcome)
        return self.run_id
