"""``run()``: a table in, a Delta table out. The one file that sees everything; it reads from top to bottom.

Open the source and pin its version, check the columns, resolve the model, open (or make) the result table; compare the
source with the table, stage what is pending, answer it bucket by bucket, commit each, report.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkinfer.config.load import load_settings
from sparkinfer.config.settings import Settings
from sparkinfer.errors import DeadlineReached, InvalidConfig
from sparkinfer.job.arguments import check_arguments
from sparkinfer.job.cache import open_shared
from sparkinfer.job.comparison import compare
from sparkinfer.job.deadline import Deadline
from sparkinfer.job.failures import stops_kept
from sparkinfer.job.increment import Increment
from sparkinfer.job.pending import keyed_rows
from sparkinfer.job.pipeline import JobTag
from sparkinfer.job.progress import OnProgress, ProgressReporter
from sparkinfer.job.record import job_facts, recorded
from sparkinfer.job.result import RunResult, refuse_failures
from sparkinfer.job.source import Source, open_source
from sparkinfer.job.spec import JobSpec, check_spec
from sparkinfer.job.work import Job, result_of, total, work
from sparkinfer.sink.base import Sink
from sparkinfer.sink.open import open_sink
from sparkinfer.tracking.base import Tracker
from sparkinfer.tracking.mlflow import MlflowTracker
from sparkinfer.udf.functions import LlmUdf
from sparkinfer.udf.resolve import spark_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run(
    spark: SparkSession,
    *,
    source: str | DataFrame,
    into: str | Sink,
    udf: LlmUdf,
    columns: Mapping[str, str] | None = None,
    key: str | Sequence[str] | None = None,
    keep: str | Sequence[str] = (),
    output: str = "result",
    mode: str = "latest",
    retry_failed: bool = False,
    deadline: str | float | Deadline | None = None,
    cache: str | None = None,
    staging: str | None = None,
    experiment: str | None = None,
    tracking_uri: str | None = None,
    fail_on_error: bool | None = None,
    on_progress: OnProgress | None = None,
    tracker: Tracker | None = None,
    buckets: int | None = None,
) -> RunResult:
    """Label a table into a Delta table; safe to repeat, to kill and to run twice at once.

    Only rows that the table does not have yet are asked (a row is its key, its input and the UDF's configuration); equal
    inputs are asked once. Rows that fail are written with their error and do not end the job.

    Args:
        spark: the session.
        source: table name, path (has a ``/`` or a scheme), or DataFrame; a Delta source is pinned to its newest version, and
            one with a change data feed is read by its changes since the last complete run where that is provably the same.
        into: result table by name or path, or a sink.
        udf: what to ask, from ``llm_udf(...)`` without columns.
        columns: the UDF's arguments (and ``params``) -> source columns; None: columns of the same names.
        key: source columns that name a row; None: all columns and an occurrence number do.
        keep: source columns to keep beside the key.
        output: the answer's column.
        mode: ``latest``: one row per key; ``append``: one row per key, input and configuration.
        retry_failed: ask again for rows that stand in the table as failed.
        deadline: how long the job may take, from now: ``2h``, ``90m``, ``45s``, ``1h30m`` or seconds as a number; the job
            then ends as on Ctrl-C, and the same job goes on later. None: as long as it needs.
        cache: table name or path of answers that jobs share: a text that any of them has answered under the same configuration
            is not asked again, and counts as reused; what this run pays for is added. Made where there is none.
        staging: folder for staged answers; None: beside a path table, else the session's scratch folder.
        experiment: MLflow experiment.
        tracking_uri: MLflow store.
        fail_on_error: True: raise after the good rows are committed; None: as the UDF has it.
        on_progress: called about once a second with a :class:`sparkinfer.job.progress.Progress`.
        tracker: instead of MLflow.
        buckets: into how many buckets a new table is cut; None: by its rows.

    Raises:
        ConfigError: wrong use, found before anything is asked or written.
        ModelError, HostError: the model or its engine cannot be had.
        JobError: the table cannot be written; answers that were staged are kept for the next run.
        DeadlineReached: the time was over; what is finished is kept or committed, and the message says what is left.
        FailedRows: ``fail_on_error`` is true and rows failed.
    """
    started = time.monotonic()
    if not isinstance(udf, LlmUdf):
        raise InvalidConfig(f"run(): udf must be llm_udf(...) called without columns, not {type(udf).__name__}.")
    check_arguments(
        source=source,
        into=into,
        columns=columns,
        key=key,
        keep=keep,
        output=output,
        buckets=buckets,
        on_progress=on_progress,
        tracker=tracker,
    )
    deadline = deadline if isinstance(deadline, Deadline) else Deadline(deadline)
    settings = _settings(spark, staging=staging, experiment=experiment, tracking_uri=tracking_uri)
    reporter = ProgressReporter(on_progress)
    reporter.start()
    name = into if isinstance(into, str) else into.table
    try:
        opened = open_source(spark, source)
        spec = check_spec(
            opened.frame.schema,
            names=udf.names,
            columns=columns,
            key=key,
            keep=keep,
            output=output,
            mode=mode,
            retry_failed=retry_failed,
            logprobs=udf.arguments.sampling.logprobs is not None,
        )
        rows = keyed_rows(opened.frame, spec)
        recipe = udf.resolve(spark)
        sink = open_sink(spark, into) if isinstance(into, str) else into
        answers = None if cache is None else open_shared(spark, cache, into=sink.table)
        expected = spec.table_columns(opened.frame.schema)
        snapshot = sink.facts()
        run_id = uuid.uuid4().hex
        job = Job(
            spark=spark,
            spec=spec,
            udf=recipe,
            deterministic=udf.deterministic,
            sink=sink,
            source=opened.facts,
            columns=tuple(column.name for column in expected),
            run_id=run_id,
            staging=settings.staging,
            cache=answers,
            increment=_increment(spark, opened, spec, config_hash=recipe.task.config_hash),
            tag=JobTag(spark, f"sparkinfer-{run_id}"),
            deadline=deadline,
        )
        facts = job_facts(
            run_id=run_id,
            source=opened.facts,
            sink=sink,
            snapshot=snapshot,
            expected=expected,
            spec=spec,
            udf=recipe,
            experiment=settings.experiment,
            tracking_uri=settings.tracking_uri,
        )
        with recorded(tracker or _mlflow(settings), facts) as record, stops_kept(), job.tag.on_this_thread():
            with deadline.over(job.tag.cancel):
                compared = compare(
                    sink,
                    rows,
                    spec=spec,
                    expected=expected,
                    config_hash=recipe.task.config_hash,
                    snapshot=snapshot,
                    buckets=buckets,
                    increment=job.increment,
                )
            is_done = not compared.survey.pending and not compared.survey.doubled
            commits = [] if is_done else work(job, compared, reporter, record)
            result = record.result = result_of(job, compared, commits, seconds=time.monotonic() - started)
    except DeadlineReached as error:
        raise DeadlineReached(f"{error.message} {reporter.look().what_is_left(name)}") from error
    finally:
        reporter.close()
    result = replace(result, mlflow_run_id=record.mlflow_run_id, seconds=time.monotonic() - started)
    if fail_on_error or (fail_on_error is None and recipe.fail_on_error):
        refuse_failures(result, example=total(commits).example)
    return result


def _settings(spark: SparkSession, **given: str | None) -> Settings:
    """What is said once for many jobs, with this call's arguments over it."""
    return load_settings({name: value for name, value in given.items() if value is not None}, spark_conf(spark), None)


def _increment(spark: SparkSession, opened: Source, spec: JobSpec, *, config_hash: str) -> Increment | None:
    """The source by its changes: a Delta table with a change feed, and one row a key in source and table."""
    if opened.feed is None or not spec.key or spec.mode != "latest":
        return None
    return Increment(spark=spark, feed=opened.feed, schema=opened.frame.schema, spec=spec, config_hash=config_hash)


def _mlflow(settings: Settings) -> Tracker | None:
    return MlflowTracker(sample_rows=settings.tracking.sample_rows) if settings.tracking.enabled else None
