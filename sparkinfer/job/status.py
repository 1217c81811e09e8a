"""``status()``: what stands in a result table. By path it needs neither Spark nor Java."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from sparkinfer.errors import InvalidConfig, PermissionDenied, SourceNotFound, TableSchemaMismatch
from sparkinfer.sink.base import BUCKETS_PROPERTY, parse_metadata
from sparkinfer.sink.faults import first_line, job_error
from sparkinfer.sink.location import absolute, is_path

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow import Array
    from pyspark.sql import SparkSession

_COLUMNS = (
    "error_code",
    "finish_reason",
    "attempts",
    "prompt_tokens",
    "completion_tokens",
    "model_name",
    "config_hash",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommits:
    """What one run committed: how many buckets and rows, between which times, with which model."""

    run_id: str
    commits: int
    rows: int
    model: str
    model_version: str
    source: str
    source_version: int | None
    first_version: int
    last_version: int
    last_commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """A result table at its newest version.

    Attributes:
        table: its path.
        version: of the table.
        output: the answer's column, as the newest run named it.
        rows: all of them.
        failed: with an error.
        skipped: without a request, on purpose.
        reused: answered by another row's answer (twins and rows of earlier runs).
        failures: failed rows by code.
        prompt_tokens: of all rows.
        completion_tokens: of all rows.
        models: rows by model.
        configs: number of different configurations among the rows.
        buckets: into how many the table is cut.
        runs: newest first.
    """

    table: str
    version: int
    output: str | None
    rows: int
    failed: int
    skipped: int
    reused: int
    prompt_tokens: int
    completion_tokens: int
    configs: int
    buckets: int | None
    failures: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[str, int] = field(default_factory=dict)
    runs: tuple[RunCommits, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values."""
        return asdict(self)


def status(table: str, spark: SparkSession | None = None) -> TableStatus:
    """Read what stands in a result table.

    Args:
        table: path, or a table name with ``spark`` given (its location is asked there).
        spark: only for table names.

    Raises:
        SourceNotFound: there is no Delta table at that place.
        PermissionDenied: no right to read it.
        TableSchemaMismatch: it is a table, but not one that ``run()`` writes.
        InvalidConfig: a name without a session.
    """
    path = absolute(table) if is_path(table) else _location(table, spark)
    found = _open(path)
    missing = [name for name in _COLUMNS if name not in {f.name for f in found.schema().fields}]
    if missing:
        raise TableSchemaMismatch(
            f"{table} is not a result table of sparkinfer: it has no column {', '.join(missing)}."
        )
    counts = _counts(found)
    runs = _runs(found)
    buckets = found.metadata().configuration.get(BUCKETS_PROPERTY)
    return TableStatus(
        table=table,
        version=found.version(),
        output=_output(found),
        buckets=None if buckets is None else int(buckets),
        runs=runs,
        **counts,
    )


def _open(path: str) -> DeltaTable:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(path)
    except TableNotFoundError as error:
        raise SourceNotFound(f"There is no Delta table at {path}. Give the path that a job wrote `into`.") from error
    except Exception as error:
        found = job_error(error, table=path, doing="Reading the table")
        if isinstance(found, PermissionDenied):
            raise found from error
        raise SourceNotFound(f"The table {path} cannot be read: {first_line(error)}") from error


def _location(table: str, spark: SparkSession | None) -> str:
    if spark is None:
        raise InvalidConfig(
            f"{table} is a table's name; give its path (with a /), or a Spark session that knows the name."
        )
    try:
        return str(spark.sql(f"DESCRIBE DETAIL {table}").collect()[0]["location"])
    except Exception as error:
        raise SourceNotFound(f"The session knows no table {table}: {first_line(error)}") from error


def _counts(table: DeltaTable) -> dict[str, Any]:
    """One pass over the few columns that matter, batch by batch."""
    import pyarrow.compute as pc

    failures: Counter[str] = Counter()
    models: Counter[str] = Counter()
    configs: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for batch in table.to_pyarrow_dataset().to_batches(columns=list(_COLUMNS)):
        is_skipped = pc.fill_null(pc.equal(batch["finish_reason"], "skipped"), False)
        is_reused = pc.and_not(pc.fill_null(pc.equal(batch["attempts"], 0), False), is_skipped)
        failures += _count_each(batch["error_code"])
        models += _count_each(batch["model_name"])
        configs += _count_each(batch["config_hash"])
        sums["rows"] += batch.num_rows
        sums["skipped"] += is_skipped.true_count
        sums["reused"] += is_reused.true_count
        for name in ("prompt_tokens", "completion_tokens"):
            sums[name] += pc.sum(batch[name]).as_py() or 0
    names = ("rows", "skipped", "reused", "prompt_tokens", "completion_tokens")
    return {
        **{name: sums[name] for name in names},
        "failed": failures.total(),
        "failures": dict(failures),
        "models": dict(models),
        "configs": len(configs),
    }


def _count_each(values: Array) -> Counter[str]:
    """How often each value stands there, nulls left out."""
    return Counter({pair["values"]: pair["counts"] for pair in values.drop_null().value_counts().to_pylist()})


def _history(table: DeltaTable) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(commit, our metadata), newest first, of the commits that are ours."""
    pairs = [(commit, parse_metadata(commit.get("userMetadata"))) for commit in table.history()]
    return [(commit, metadata) for commit, metadata in pairs if metadata]


def _output(table: DeltaTable) -> str | None:
    return next((metadata.get("output") for _, metadata in _history(table)), None)


def _runs(table: DeltaTable) -> tuple[RunCommits, ...]:
    by_run: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for commit, metadata in _history(table):
        by_run.setdefault(str(metadata.get("run_id")), []).append((commit, metadata))
    return tuple(_run(run_id, commits) for run_id, commits in by_run.items())


def _run(run_id: str, commits: list[tuple[dict[str, Any], dict[str, Any]]]) -> RunCommits:
    newest, metadata = commits[0]
    at = datetime.fromtimestamp(newest["timestamp"] / 1000, tz=timezone.utc)
    return RunCommits(
        run_id=run_id,
        commits=len(commits),
        rows=sum(int(m.get("counts", {}).get("rows", 0)) for _, m in commits),
        model=str(metadata.get("model")),
        model_version=str(metadata.get("model_version")),
        source=str(metadata.get("source")),
        source_version=metadata.get("source_version"),
        first_version=int(commits[-1][0]["version"]),
        last_version=int(newest["version"]),
        last_commit=at.isoformat(timespec="seconds"),
    )
