"""``run()``: a table in, a Delta table out. The one file that sees everything; it reads from top to bottom.

Open the source and pin its version, check the columns, resolve the model, open (or make) the result table; compare the
source with the table, stage what is pending, answer it bucket by bucket, commit each, report.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkinfer.config.load import load_settings
from sparkinfer.config.settings import Settings
from sparkinfer.errors import InvalidConfig
from sparkinfer.job.answers import KnownAnswers
from sparkinfer.job.chunks import Chunks, slot_count
from sparkinfer.job.commit import Committed, Committer, StagedBucket
from sparkinfer.job.comparison import Comparison, compare
from sparkinfer.job.counts import Counts
from sparkinfer.job.failures import stops_kept
from sparkinfer.job.pending import keyed_rows
from sparkinfer.job.pipeline import JobTag, answered_in_order
from sparkinfer.job.progress import OnProgress, ProgressReporter
from sparkinfer.job.record import Record, job_facts, recorded
from sparkinfer.job.result import RunResult, refuse_failures
from sparkinfer.job.source import open_source
from sparkinfer.job.spec import JobSpec, check_spec
from sparkinfer.job.staging import Staging, staging_of, staging_root
from sparkinfer.job.warmup import start_engine
from sparkinfer.sink.base import Sink
from sparkinfer.sink.open import open_sink
from sparkinfer.tracking.base import DatasetFacts, Tracker
from sparkinfer.tracking.mlflow import MlflowTracker
from sparkinfer.udf.functions import LlmUdf
from sparkinfer.udf.resolve import ResolvedUdf, spark_conf

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
        source: table name, path (has a ``/`` or a scheme), or DataFrame; a Delta source is pinned to its newest version.
        into: result table by name or path, or a sink.
        udf: what to ask, from ``llm_udf(...)`` without columns.
        columns: the UDF's arguments (and ``params``) -> source columns; None: columns of the same names.
        key: source columns that name a row; None: all columns and an occurrence number do.
        keep: source columns to keep beside the key.
        output: the answer's column.
        mode: ``latest``: one row per key; ``append``: one row per key, input and configuration.
        retry_failed: ask again for rows that stand in the table as failed.
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
        FailedRows: ``fail_on_error`` is true and rows failed.
    """
    started = time.monotonic()
    if not isinstance(udf, LlmUdf):
        raise InvalidConfig(f"run(): udf must be llm_udf(...) called without columns, not {type(udf).__name__}.")
    settings = _settings(spark, staging=staging, experiment=experiment, tracking_uri=tracking_uri)
    reporter = ProgressReporter(on_progress)
    reporter.start()
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
        expected = spec.table_columns(opened.frame.schema)
        snapshot = sink.facts()
        job = _Job(
            spark=spark,
            spec=spec,
            udf=recipe,
            deterministic=udf.deterministic,
            sink=sink,
            source=opened.facts,
            columns=tuple(column.name for column in expected),
            run_id=uuid.uuid4().hex,
            staging=settings.staging,
        )
        facts = job_facts(
            run_id=job.run_id,
            source=opened.facts,
            sink=sink,
            snapshot=snapshot,
            expected=expected,
            spec=spec,
            udf=recipe,
            experiment=settings.experiment,
            tracking_uri=settings.tracking_uri,
        )
        with recorded(tracker or _mlflow(settings), facts) as record, stops_kept():
            compared = compare(
                sink,
                rows,
                spec=spec,
                expected=expected,
                config_hash=recipe.task.config_hash,
                snapshot=snapshot,
                buckets=buckets,
            )
            commits = _work(job, compared, reporter, record) if compared.survey.pending else []
            result = record.result = _result(job, compared, commits, seconds=time.monotonic() - started)
    finally:
        reporter.close()
    result = replace(result, mlflow_run_id=record.mlflow_run_id, seconds=time.monotonic() - started)
    if fail_on_error or (fail_on_error is None and recipe.fail_on_error):
        refuse_failures(result, example=_total(commits).example)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What was asked for, opened and checked."""

    spark: SparkSession
    spec: JobSpec
    udf: ResolvedUdf
    deterministic: bool
    sink: Sink
    source: DatasetFacts
    columns: tuple[str, ...]
    run_id: str
    staging: str | None


def _work(job: _Job, compared: Comparison, reporter: ProgressReporter, record: Record) -> list[Committed]:
    """Stage what is pending, answer it bucket by bucket, and commit each as it is answered."""
    root = staging_root(job.spark, table=job.sink.table, staging=job.staging)
    tag = JobTag(job.spark, f"sparkinfer-{job.run_id}")
    config_hash = job.udf.task.config_hash
    commits: list[Committed] = []
    with staging_of(root, run_id=job.run_id, config_hash=config_hash) as staging, tag.on_this_thread():
        reporter.watch(staging.progress, staging.beat)
        reporter.phase("staging")
        chunks = _chunks(job, compared, staging)
        if compared.snapshot.is_empty and not staging.harvest():
            start_engine(job.spark, chunks.udf, slots=chunks.slots, mark=tag.on_this_thread)
        pending = chunks.stage_pending(compared.states)
        reporter.expect(rows=sum(pending.rows.values()), buckets=len(pending.rows))
        reporter.phase("answering")
        known = KnownAnswers(
            job.spark,
            sink=job.sink,
            snapshot=compared.snapshot,
            harvest=staging.harvest(),
            segments=staging.harvest_segments(),
            spec=job.spec,
            config_hash=config_hash,
        )
        committer = Committer(
            job.sink,
            snapshot=compared.snapshot,
            merge_keys=job.spec.merge_keys,
            metadata=_metadata(job),
            restage=lambda staged, snapshot: chunks.restage(job.sink, staged, snapshot),
        )

        def answer(bucket: int) -> StagedBucket:
            with tag.on_this_thread():
                return chunks.answer(bucket, pending, known)

        with closing(answered_in_order(list(pending.rows), answer, cancel=tag.cancel)) as answered:
            for staged in answered:
                if not commits:
                    record.samples = chunks.samples(staged)
                committed = committer.commit(staged)
                staging.drop_bucket(staged.bucket)
                commits.append(committed)
                reporter.committed(committed.counts)
                record.committed(committed.counts)
        reporter.watch(tuple, lambda: None)
    reporter.phase("done")
    return commits


def _chunks(job: _Job, compared: Comparison, staging: Staging) -> Chunks:
    return Chunks(
        spark=job.spark,
        spec=job.spec,
        udf=job.udf.with_progress(staging.progress_dir),
        deterministic=job.deterministic,
        staging=staging,
        buckets=compared.buckets,
        slots=slot_count(job.spark),
        run_id=job.run_id,
        columns=job.columns,
    )


def _metadata(job: _Job) -> dict[str, object]:
    """What stands beside each commit."""
    model = job.udf.engine.model
    return {
        "run_id": job.run_id,
        "model": model.name,
        "model_version": model.version,
        "config_hash": job.udf.task.config_hash,
        "source": job.source.name,
        "source_version": job.source.version,
        "output": job.spec.output,
    }


def _result(job: _Job, compared: Comparison, commits: Sequence[Committed], *, seconds: float) -> RunResult:
    counts = _total(commits)
    versions = tuple(committed.version for committed in commits if committed.version is not None)
    found = compared.survey
    model = job.udf.engine.model
    return RunResult(
        rows=counts.rows,
        failed=counts.failed,
        skipped=counts.skipped,
        reused=counts.reused,
        already_done=found.source_rows - counts.rows - found.failed_before,
        failed_before=found.failed_before,
        source_rows=found.source_rows,
        requests=counts.requests,
        prompt_tokens=counts.prompt_tokens,
        completion_tokens=counts.completion_tokens,
        paid_prompt_tokens=counts.paid_prompt_tokens,
        paid_completion_tokens=counts.paid_completion_tokens,
        seconds=seconds,
        table=job.sink.table,
        table_version=max(versions, default=compared.snapshot.version),
        source=job.source.source,
        source_version=job.source.version,
        writer=job.sink.writer,
        run_id=job.run_id,
        mlflow_run_id=None,
        model_name=model.name,
        model_version=model.version,
        config_hash=job.udf.task.config_hash,
        failures=dict(counts.failures),
        commits=versions,
    )


def _total(commits: Sequence[Committed]) -> Counts:
    return sum((committed.counts for committed in commits), Counts())


def _settings(spark: SparkSession, **given: str | None) -> Settings:
    """What is said once for many jobs, with this call's arguments over it."""
    return load_settings({name: value for name, value in given.items() if value is not None}, spark_conf(spark), None)


def _mlflow(settings: Settings) -> Tracker | None:
    return MlflowTracker(sample_rows=settings.tracking.sample_rows) if settings.tracking.enabled else None
