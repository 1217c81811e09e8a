"""The job as its tracker sees it: facts at the start, figures with each bucket, an outcome whatever happens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from sparkinfer.errors import DeadlineReached, SparkInferError
from sparkinfer.job.counts import Counts
from sparkinfer.job.result import RunResult
from sparkinfer.job.spec import JobSpec
from sparkinfer.sink.base import Sink, TableColumn, TableFacts
from sparkinfer.tracking.base import DatasetFacts, JobFacts, JobOutcome, NullTracker, RunStatus, Scalar, Tracker
from sparkinfer.udf.resolve import ResolvedUdf

#: Figures of a result that become metrics.
_METRICS = (
    "rows",
    "failed",
    "skipped",
    "reused",
    "already_done",
    "failed_before",
    "source_rows",
    "requests",
    "prompt_tokens",
    "completion_tokens",
    "paid_prompt_tokens",
    "paid_completion_tokens",
    "seconds",
    "rows_per_second",
    "tokens_per_second",
)


class Record:
    """Collects what the tracker is told at the end. ``mlflow_run_id`` is known after the block of :func:`recorded`."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._done = Counts()
        self._buckets = 0
        self.samples: tuple[Mapping[str, Scalar], ...] = ()
        self.result: RunResult | None = None
        self.mlflow_run_id: str | None = None

    def committed(self, counts: Counts) -> None:
        """A bucket is in the table."""
        self._done += counts
        self._buckets += 1
        self._tracker.progress(
            self._buckets, {f"committed_{name}": float(n) for name, n in self._done.numbers().items()}
        )

    def finish(self, status: RunStatus, error: str | None = None) -> None:
        """Write the outcome."""
        result = self.result
        metrics = {} if result is None else {name: float(getattr(result, name)) for name in _METRICS}
        self.mlflow_run_id = self._tracker.finish(
            JobOutcome(
                status=status,
                metrics=metrics or {name: float(n) for name, n in self._done.numbers().items()},
                failures=dict(self._done.failures),
                samples=self.samples,
                output_version=None if result is None else result.table_version,
                error=error,
            )
        )


@contextmanager
def recorded(tracker: Tracker | None, facts: JobFacts) -> Iterator[Record]:
    """A job between its start and its outcome, as the tracker gets them.

    Args:
        tracker: None tracks nothing.
        facts: what is known at the start.
    """
    chosen: Tracker = NullTracker() if tracker is None else tracker
    record = Record(chosen)
    chosen.start(facts)
    try:
        yield record
    except DeadlineReached as error:
        record.finish(RunStatus.KILLED, str(error))
        raise
    except Exception as error:
        text = str(error) if isinstance(error, SparkInferError) else f"{type(error).__name__}: {error}"
        record.finish(RunStatus.FAILED, text)
        raise
    except BaseException as error:
        record.finish(RunStatus.KILLED, type(error).__name__)
        raise
    record.finish(RunStatus.FINISHED)


def job_facts(
    *,
    run_id: str,
    source: DatasetFacts,
    sink: Sink,
    snapshot: TableFacts | None,
    expected: tuple[TableColumn, ...],
    spec: JobSpec,
    udf: ResolvedUdf,
    experiment: str | None,
    tracking_uri: str | None,
) -> JobFacts:
    """Everything that decided the job, as far as it is known before it runs."""
    name = PurePosixPath(sink.table).name if "/" in sink.table else sink.table
    output = DatasetFacts(
        name=name,
        source=sink.table,
        format="delta",
        version=None if snapshot is None else snapshot.version,
        columns={column.name: column.ddl for column in expected},
    )
    return JobFacts(
        job=name,
        run_key=run_id,
        model=udf.engine.model,
        config_hash=udf.task.config_hash,
        source=source,
        output=output,
        params=_params(spec, udf),
        tags={"sparkinfer.writer": sink.writer},
        prompt=udf.task.prompt,
        system=udf.task.system,
        experiment=experiment,
        tracking_uri=tracking_uri,
    )


def _params(spec: JobSpec, udf: ResolvedUdf) -> dict[str, str]:
    task = udf.task
    values: dict[str, Any] = {
        **task.sampling.to_dict(),
        "choices": None if task.choices is None else list(task.choices),
        "on_overflow": task.on_overflow,
        "skip_blank": task.skip_blank,
        "dtype": udf.engine.dtype,
        "engine_mode": udf.engine_mode,
        "clock": task.clock,
        "columns": dict(spec.arguments),
        "key": list(spec.key),
        "output": spec.output,
        "mode": spec.mode,
        "retry_failed": spec.retry_failed,
    }
    return {name: str(value) for name, value in values.items() if value is not None}
