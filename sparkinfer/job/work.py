"""A job's work once it is known what is pending: staged, answered bucket by bucket, each committed as it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sparkinfer.job.answers import KnownAnswers
from sparkinfer.job.cache import SharedAnswers, begun
from sparkinfer.job.chunks import Chunks, Pending, slot_count
from sparkinfer.job.commit import Committed, Committer, StagedBucket
from sparkinfer.job.comparison import Comparison
from sparkinfer.job.counts import Counts
from sparkinfer.job.deadline import Deadline
from sparkinfer.job.increment import Increment
from sparkinfer.job.pipeline import JobTag, answer_in_order
from sparkinfer.job.progress import ProgressReporter
from sparkinfer.job.record import Record
from sparkinfer.job.result import RunResult
from sparkinfer.job.spec import JobSpec
from sparkinfer.job.staging import Staging, staging_of, staging_root
from sparkinfer.job.warmup import start_engine
from sparkinfer.sink.base import Sink
from sparkinfer.tracking.base import DatasetFacts
from sparkinfer.udf.resolve import ResolvedUdf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What was asked for, opened and checked.

    Attributes:
        cache: the answers table that jobs share.
        increment: the source by its changes, where it can be read so.
        tag: marks the job's Spark work, so that it can be ended.
        deadline: when it has to end.
    """

    spark: SparkSession
    spec: JobSpec
    udf: ResolvedUdf
    deterministic: bool
    sink: Sink
    source: DatasetFacts
    columns: tuple[str, ...]
    run_id: str
    staging: str | None
    cache: Sink | None
    increment: Increment | None
    tag: JobTag
    deadline: Deadline


def work(job: Job, compared: Comparison, reporter: ProgressReporter, record: Record) -> list[Committed]:
    """Stage what is pending, answer it bucket by bucket, and commit each as it is answered.

    Raises:
        DeadlineReached: the job's time is over; what is whole was committed, the rest is kept in staging.
    """
    root = staging_root(job.spark, table=job.sink.table, staging=job.staging)
    tag = job.tag
    config_hash = job.udf.task.config_hash
    commits: list[Committed] = []
    with staging_of(root, run_id=job.run_id, config_hash=config_hash) as staging:
        reporter.watch(staging.progress, staging.beat)
        reporter.phase("staging")
        chunks = _chunks(job, compared, staging)
        shared = _shared(job)
        if compared.snapshot.is_empty and not staging.harvest() and (shared is None or shared.snapshot.is_empty):
            start_engine(job.spark, chunks.udf, slots=chunks.slots, mark=tag.on_this_thread)
        with job.deadline.over(tag.cancel):
            pending = chunks.stage_pending(compared.states)
            cached = [] if shared is None else shared.stage_known(staging)
        reporter.expect(rows=sum(pending.rows.values()), buckets=len(pending.rows))
        reporter.phase("answering")
        known = KnownAnswers(
            job.spark,
            sink=job.sink,
            snapshot=compared.snapshot,
            harvest=staging.harvest(),
            segments=staging.harvest_segments(),
            cached=cached,
            spec=job.spec,
            config_hash=config_hash,
        )
        committer = Committer(
            job.sink,
            snapshot=compared.snapshot,
            merge_keys=job.spec.merge_keys,
            metadata=_metadata(job),
            restage=lambda staged, snapshot: chunks.restage(job.sink, staged, snapshot),
            doubles=partial(chunks.doubles, job.sink) if job.spec.mode == "latest" else None,
        )

        if compared.survey.doubled:
            with job.deadline.over(tag.cancel):
                committer.settle()

        def commit(staged: StagedBucket) -> None:
            if not commits:
                record.samples = chunks.samples(staged)
            committed = committer.commit(staged, beside=_ended(job, compared, pending, commits, staged))
            staging.drop_bucket(staged.bucket)
            commits.append(committed)
            reporter.committed(committed.counts)
            record.committed(committed.counts)

        try:
            answer_in_order(
                list(pending.rows),
                lambda bucket: chunks.answer(bucket, pending, known),
                commit,
                tag=tag,
                deadline=job.deadline,
            )
            if commits:
                committer.check_same_table()
        finally:
            version = max((c.version for c in commits if c.version is not None), default=None)
            if shared is not None and version is not None:
                shared.add(job.sink, version, staging)
        if committer.settled is not None:
            commits.append(Committed(bucket=-1, version=committer.settled, counts=Counts(), attempts=1))
        reporter.watch(tuple, lambda: None)
    reporter.phase("done")
    return commits


def _shared(job: Job) -> SharedAnswers | None:
    """The answers table at its newest version, where the job has one."""
    snapshot = None if job.cache is None else begun(job.cache)
    if job.cache is None or snapshot is None:
        return None
    return SharedAnswers(
        spark=job.spark,
        sink=job.cache,
        snapshot=snapshot,
        spec=job.spec,
        config_hash=job.udf.task.config_hash,
        run_id=job.run_id,
    )


def _ended(
    job: Job, compared: Comparison, pending: Pending, commits: Sequence[Committed], last: StagedBucket
) -> dict[str, object]:
    """What the last commit of a complete run says, so that the next one may read the source by its changes."""
    if job.increment is None or len(commits) + 1 < len(pending.rows):
        return {}
    return job.increment.ended(
        source_rows=compared.survey.source_rows,
        failed=compared.survey.failed_before + total(commits).failed + last.counts.failed,
        compared_at=compared.snapshot.version,
    )


def _chunks(job: Job, compared: Comparison, staging: Staging) -> Chunks:
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


def _metadata(job: Job) -> dict[str, object]:
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


def result_of(job: Job, compared: Comparison, commits: Sequence[Committed], *, seconds: float) -> RunResult:
    """Every figure of the job."""
    counts = total(commits)
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


def total(commits: Sequence[Committed]) -> Counts:
    """The buckets' counts together."""
    return sum((committed.counts for committed in commits), Counts())
