"""What the demo measured: computed once from the result table, kept beside it, shown again by a second run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkinfer.cli.row_by_row import RowByRow
    from sparkinfer.job.result import RunResult

#: The file format's number; a summary of another one is measured anew.
FORMAT = 1
SAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The same rows, prompts and threads: a column expression on the warm engine, and ``generate`` row by row.

    Attributes:
        rows: rows on both sides, none of them in the table.
        column_seconds: ``df.withColumn("label", llm_udf("text"))`` through Spark, collected.
        row_by_row_seconds: generating alone; loading the model is not counted.
        same_answers: rows that got the same answer on both sides.
    """

    rows: int
    column_seconds: float
    row_by_row_seconds: float
    same_answers: int

    @property
    def speed_up(self) -> float:
        """How many times faster the column was."""
        return self.row_by_row_seconds / self.column_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Everything that the demo shows.

    Attributes:
        result: the job's figures, see :class:`sparkinfer.job.result.RunResult`.
        comparison: against row by row.
        labels: answer -> rows of the table.
        accuracy: share of the labelled rows whose answer is the gold label.
        majority: share that always saying the most frequent gold label would get.
        samples: five rows: id, text, gold label, answer.
        tracking_uri: store of the MLflow run.
    """

    result: dict[str, Any]
    comparison: Comparison
    labels: dict[str, int]
    accuracy: float
    majority: float
    samples: tuple[dict[str, str | None], ...]
    tracking_uri: str
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values."""
        values = asdict(self)
        values["comparison"]["speed_up"] = self.comparison.speed_up
        return values

    def save(self, path: Path) -> None:
        """Write it whole or not at all."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(self.to_dict(), indent=2, ensure_ascii=False), encoding="utf-8")
        fresh.replace(path)


def load(path: Path) -> Summary | None:
    """A kept summary, or None where there is none (or one of another format)."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if values.get("format") != FORMAT:
        return None
    del values["comparison"]["speed_up"]
    return Summary(
        **{**values, "comparison": Comparison(**values["comparison"]), "samples": tuple(values["samples"])},
    )


def summarise(
    result: RunResult, comparison: Comparison, rows: Sequence[Mapping[str, Any]], tracking_uri: str
) -> Summary:
    """The summary of a job.

    Args:
        result: the job's.
        comparison: against row by row.
        rows: the table's rows: ``id``, ``text``, ``label`` (gold), ``predicted``.
        tracking_uri: store of the MLflow run.
    """
    gold = Counter(row["label"] for row in rows)
    right = sum(row["predicted"] == row["label"] for row in rows)
    return Summary(
        result=json.loads(json.dumps(result.to_dict())),  # as it will be read back
        comparison=comparison,
        labels=dict(Counter(str(row["predicted"]) for row in rows).most_common()),
        accuracy=right / len(rows),
        majority=max(gold.values()) / len(rows),
        samples=tuple({name: row[name] for name in ("id", "text", "label", "predicted")} for row in rows[:SAMPLES]),
        tracking_uri=tracking_uri,
    )


def compare(column: Mapping[str, str | None], column_seconds: float, ids: Sequence[str], plain: RowByRow) -> Comparison:
    """Both sides of the sample.

    Args:
        column: id -> answer of the column expression.
        column_seconds: what it took.
        ids: of the rows in the order of ``plain.answers``.
        plain: row by row.
    """
    same = sum(column.get(name) == answer for name, answer in zip(ids, plain.answers, strict=True))
    return Comparison(
        rows=plain.rows, column_seconds=column_seconds, row_by_row_seconds=plain.seconds, same_answers=same
    )
