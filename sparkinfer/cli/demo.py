"""``sparkinfer demo``: a real table of reviews labelled end to end, measured, and summarised for people."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkinfer.cli import console, demo_summary, row_by_row
from sparkinfer.cli.demo_summary import Summary
from sparkinfer.cli.demo_text import show
from sparkinfer.cli.exits import ExitCode
from sparkinfer.cli.quiet import LOG_NAME, quiet_session
from sparkinfer.cli.run import run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from sparkinfer.config.job import JobConfig
    from sparkinfer.udf.functions import LlmUdf

#: Reviews that there are; the other 48 of the file are for the comparison.
ROWS = 400
#: A few minutes on two cores.
DEFAULT_ROWS = 200
#: Reviews behind those of the table; nothing is measured on rows that the engine has an answer for.
SAMPLE_ROWS = 12
MODEL = "sample"
PROMPT = (
    "A customer wrote about something bought:\n{text}\nIs the customer's verdict great or something other than great?"
)
CHOICES = ("great", "other")


@dataclass(frozen=True, slots=True)
class Places:
    """The demo's files, all in one folder."""

    folder: Path

    @property
    def reviews(self) -> Path:
        """The source table."""
        return self.folder / "reviews.parquet"

    @property
    def sample(self) -> Path:
        """Other reviews, for the comparison."""
        return self.folder / "sample.parquet"

    @property
    def labels(self) -> Path:
        """The result table."""
        return self.folder / "labels"

    @property
    def summary(self) -> Path:
        """What was measured."""
        return self.folder / "summary.json"

    @property
    def log(self) -> Path:
        """The JVM's own messages."""
        return self.folder / LOG_NAME

    @property
    def tracking_uri(self) -> str:
        """A local MLflow store."""
        return f"sqlite:///{self.folder.resolve() / 'mlflow.db'}"


def demo(
    rows: Annotated[int, typer.Option(help="Reviews to label.", min=1, max=ROWS)] = DEFAULT_ROWS,
    again: Annotated[bool, typer.Option("--again", help="Label and measure everything once more.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for everything that the demo writes.")] = Path("out/demo"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> int:
    """Label a real table of reviews through Spark, the engine, Delta and MLflow, and show what it took."""
    people = console.people(as_json=as_json)
    places = Places(out)
    summary = None if again else _kept(places, rows)
    if summary is None:
        summary = _measure(places, rows, again=again, people=people)
        summary.save(places.summary)
    else:
        people.print(f"The table {places.labels} is complete: this is what its run measured. Nothing was inferred now.")
    show(summary, people)
    code = ExitCode.FAILED_ROWS if summary.result["failed"] else ExitCode.DONE
    if as_json:
        console.print_json({**summary.to_dict(), "exit_code": int(code)})
    return code


def job_config(places: Places) -> JobConfig:
    """The demo's job, as a file would say it."""
    from sparkinfer.config.job import JobConfig, UdfConfig

    return JobConfig(
        source=str(places.reviews),
        into=str(places.labels),
        columns={"text": "text"},
        key=("id",),
        keep=("text", "label"),
        output="predicted",
        udf=UdfConfig(model=MODEL, prompt=PROMPT, choices=CHOICES, on_overflow="truncate_middle"),
        experiment="sparkinfer-demo",
        tracking_uri=places.tracking_uri,
    )


def _kept(places: Places, rows: int) -> Summary | None:
    """The kept summary, if it is of so many rows and the table has an answer of this model and prompt for every one."""
    summary = demo_summary.load(places.summary)
    if summary is None or summary.result["source_rows"] < rows or not places.labels.is_dir():
        return None
    wanted = _udf(job_config(places)).resolve().task.config_hash
    done = sum(row["config_hash"] == wanted and row["predicted"] is not None for row in _table_rows(places))
    return summary if done >= summary.result["source_rows"] else None


def _measure(places: Places, rows: int, *, again: bool, people: Console) -> Summary:
    if again:
        shutil.rmtree(places.labels, ignore_errors=True)
    places.summary.unlink(missing_ok=True)
    _write_sources(places, rows)
    config = job_config(places)
    udf = _udf(config)
    people.print(f"1/3  sparkinfer run: {rows} reviews -> {places.labels} (the first run also prepares the model)")
    with quiet_session("sparkinfer demo", people=people, log=places.log, config={}) as spark:
        result = run_job(config, app="sparkinfer demo", people=people, log=places.log)
        people.print(
            f'2/3  df.withColumn("label", llm_udf("text")) on {SAMPLE_ROWS} other reviews, the engine still warm'
        )
        column, column_seconds = _as_column(spark, udf, places)
    people.print(f"3/3  the same {SAMPLE_ROWS} reviews row by row with model.generate, in a fresh process")
    resolved = udf.resolve()
    ids, texts = _sample(places)
    plain = row_by_row.measure(resolved.engine, resolved.task, texts, threads=_threads())
    comparison = demo_summary.compare(column, column_seconds, ids, plain)
    return demo_summary.summarise(result, comparison, _table_rows(places), places.tracking_uri)


def _udf(config: JobConfig) -> LlmUdf:
    from sparkinfer import llm_udf

    udf: LlmUdf = llm_udf(**config.udf.keywords())
    return udf


def _write_sources(places: Places, rows: int) -> None:
    import pyarrow.parquet as pq

    places.folder.mkdir(parents=True, exist_ok=True)
    with as_file(files("sparkinfer.cli") / "data" / "reviews.parquet") as path:
        reviews = pq.read_table(path)
    pq.write_table(reviews.slice(0, rows), places.reviews)
    pq.write_table(reviews.slice(ROWS, SAMPLE_ROWS), places.sample)


def _as_column(spark: SparkSession, udf: LlmUdf, places: Places) -> tuple[dict[str, str | None], float]:
    """The sample's answers by id, and the seconds from the read to the last row."""
    began = time.perf_counter()
    sample = spark.read.parquet(str(places.sample)).repartition(_threads())
    answered = sample.withColumn("predicted", udf("text")).select("id", "predicted").collect()
    return {row["id"]: row["predicted"] for row in answered}, time.perf_counter() - began


def _sample(places: Places) -> tuple[list[str], list[str]]:
    import pyarrow.parquet as pq

    table = pq.read_table(places.sample)
    return table["id"].to_pylist(), table["text"].to_pylist()


def _table_rows(places: Places) -> list[Mapping[str, Any]]:
    """The result table without a JVM, in the source's order."""
    from deltalake import DeltaTable

    table = DeltaTable(places.labels).to_pyarrow_table(columns=["id", "text", "label", "predicted", "config_hash"])
    rows: list[Mapping[str, Any]] = table.sort_by("id").to_pylist()
    return rows


def _threads() -> int:
    from sparkinfer.model.devices import cpu_threads

    return cpu_threads()
