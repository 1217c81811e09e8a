"""``sparkinfer run job.yaml``: one job from a file, as spark-submit, Airflow and Databricks jobs call it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkinfer.cli import console
from sparkinfer.cli.exits import ExitCode
from sparkinfer.cli.live import LastLook, watch
from sparkinfer.cli.quiet import log_of_its_own, quiet_session
from sparkinfer.errors import DeadlineReached
from sparkinfer.tracking.base import NullTracker, Tracker
from sparkinfer.tracking.mlflow import MlflowTracker

if TYPE_CHECKING:
    from rich.console import Console

    from sparkinfer.config.job import JobConfig
    from sparkinfer.job.result import RunResult


def run(
    job: Annotated[Path, typer.Argument(help="Job file; its keys are the arguments of run().", metavar="JOB.YAML")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> int:
    """Label a table: run the job of a file; safe to repeat, to kill, to run twice at once."""
    from sparkinfer.config.load import load_job

    people = console.people(as_json=as_json)
    config, seen = load_job(job), LastLook()
    try:
        result = run_job(config, app=f"sparkinfer {job.stem}", people=people, seen=seen)
    except (KeyboardInterrupt, DeadlineReached) as stop:
        if as_json:
            reason = "deadline" if isinstance(stop, DeadlineReached) else "signal"
            console.print_json(
                {"table": config.into, "stopped": reason, **seen.to_dict(), "exit_code": int(ExitCode.STOPPED)}
            )
        raise
    tell(result, people)
    code = exit_code(result)
    if as_json:
        console.print_json({**result.to_dict(), "exit_code": int(code)})
    return code


def run_job(
    config: JobConfig, *, app: str, people: Console, log: Path | None = None, seen: LastLook | None = None
) -> RunResult:
    """Run a job in a session of its own, or in the one that is there (spark-submit, a notebook).

    Args:
        config: the job.
        app: name of the application.
        people: where progress is drawn.
        log: file for the JVM's own messages; None: one in the system's temporary folder.
        seen: keeps the last look at the job.
    """
    from sparkinfer import llm_udf
    from sparkinfer import run as run_table

    udf = llm_udf(**config.udf.keywords())
    seen = seen or LastLook()
    try:
        with (
            contextlib.nullcontext(log) if log is not None else log_of_its_own() as log,
            quiet_session(app, people=people, log=log, config=_session_settings(config)) as spark,
            watch(people) as draw,
        ):
            return run_table(spark, udf=udf, on_progress=seen.through(draw), **arguments(config))
    except KeyboardInterrupt:
        people.print(seen.what_is_left(config.into))
        raise


def arguments(config: JobConfig) -> dict[str, Any]:
    """The keywords of ``run()`` that a job file holds."""
    return {
        "source": config.source,
        "into": config.into,
        "columns": config.columns,
        "key": list(config.key),
        "keep": list(config.keep),
        "output": config.output,
        "mode": config.mode,
        "retry_failed": config.retry_failed,
        "deadline": config.deadline,
        "cache": config.cache,
        "staging": config.staging,
        "experiment": config.experiment,
        "fail_on_error": config.fail_on_error,
        "tracking_uri": config.tracking_uri,
        "tracker": _tracker(config),
    }


def _tracker(config: JobConfig) -> Tracker | None:
    if config.tracking is None:
        return None
    if not config.tracking.enabled:
        return NullTracker()
    return MlflowTracker(sample_rows=config.tracking.sample_rows)


def _session_settings(config: JobConfig) -> dict[str, str]:
    """The session's settings, with the job's registry where the model may come from."""
    registry = {} if config.registry_uri is None else {"spark.sparkinfer.registry_uri": config.registry_uri}
    return {**registry, **config.spark}


def exit_code(result: RunResult) -> ExitCode:
    """Done, or done with failed rows (also where only old ones are left)."""
    return ExitCode.FAILED_ROWS if result.failed or result.failed_before else ExitCode.DONE


def tell(result: RunResult, people: Console) -> None:
    """The result in a few lines."""
    people.print(
        f"{result.table}: {result.rows} rows written ({result.failed} failed, {result.skipped} skipped, {result.reused} reused), "
        f"{result.already_done} were there already, in {result.seconds:.1f} s"
    )
    if result.rows:
        people.print(
            f"{result.rows_per_second:.1f} valid rows/s, {result.tokens_per_second:.0f} tokens/s "
            f"({result.paid_prompt_tokens} in, {result.paid_completion_tokens} out), the whole wall clock counted"
        )
    for code, count in sorted(result.failures.items()):
        people.print(f"  {count} x {code}")
    if result.failed_before:
        people.print(f"{result.failed_before} rows failed in earlier runs; retry_failed: true asks them again")
    people.print(
        f"table version {result.table_version} by {result.writer}, model {result.model_name} {result.model_version}"
    )
    people.print(f"MLflow run {result.mlflow_run_id or 'none'}; more: sparkinfer status {result.table}")
