"""The demo's summary as text for people."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparkinfer.cli.demo_summary import Comparison, Summary

SAMPLE_WIDTH = 110


def show(summary: Summary, people: Console) -> None:
    """Print the whole summary."""
    people.print()
    people.print(_pairs(lines(summary), style="bold"))
    people.print()
    people.print(_samples(summary, people))
    people.print()
    people.print("Where to look next", style="bold")
    for command, purpose in next_steps(summary):  # never cut or wrapped by us: they are there to be copied
        people.print(Text.assemble("  ", (command, "cyan"), f"  # {purpose}"), soft_wrap=True)


def _pairs(pairs: Sequence[tuple[str, str]], *, style: str) -> Table:
    """Two columns; a long text is wrapped inside its own."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=style, no_wrap=True)
    grid.add_column()
    for first, second in pairs:
        grid.add_row(first, Text(second))
    return grid


def lines(summary: Summary) -> list[tuple[str, str]]:
    """Name and text of each line."""
    result = summary.result
    return [
        ("rows", f"{result['rows']} labelled, {result['failed']} failed{_before(result)}"),
        ("wall clock", f"{result['seconds']:.1f} s, the engine's start and all commits included"),
        ("valid rows/s", f"{result['rows_per_second']:.1f} over the whole wall clock"),
        ("tokens/s", _tokens(result)),
        ("speed-up", _speed_up(summary.comparison)),
        ("labels", ", ".join(f"{label} {count}" for label, count in summary.labels.items())),
        ("accuracy", _accuracy(summary)),
        ("model", f"{result['model_name']}, version {result['model_version']}"),
        ("table", f"{result['table']}, version {result['table_version']}, written by {result['writer']}"),
        ("MLflow run", str(result["mlflow_run_id"] or "none (see the warning above)")),
    ]


def _before(result: Mapping[str, Any]) -> str:
    """A demo that was stopped goes on where it was; the figures are of what was left."""
    count = result["already_done"]
    return f", {count} were there already from a run that was stopped" if count else ""


def _speed_up(compared: Comparison) -> str:
    return (
        f"{compared.speed_up:.1f}x over model.generate row by row, for the same {compared.rows} other rows and threads: "
        f"{compared.row_by_row_seconds:.1f} s row by row, {compared.column_seconds:.1f} s as a column, models loaded on both "
        f"sides ({compared.same_answers} of {compared.rows} answers equal)"
    )


def _tokens(result: Mapping[str, Any]) -> str:
    return (
        f"{result['tokens_per_second']:.0f} over the whole wall clock ({result['paid_prompt_tokens']} in, "
        f"{result['paid_completion_tokens']} out)"
    )


def _accuracy(summary: Summary) -> str:
    beaten = summary.accuracy > summary.majority
    verdict = "better than that" if beaten else "this small model does not beat that, it shows the way, not the quality"
    return (
        f"{summary.accuracy:.1%} against the gold label; always saying the most frequent one: {summary.majority:.1%} "
        f"({verdict})"
    )


def _samples(summary: Summary, people: Console) -> Table:
    """Only the text gives way where the terminal is narrow."""
    table = Table(
        title="Five of the rows",
        title_justify="left",
        show_edge=False,
        pad_edge=False,
        width=min(SAMPLE_WIDTH, people.width),
    )
    widths = {"id": 9, "label": 9, "predicted": 9}
    for name in ("id", "text", "label", "predicted"):
        table.add_column(
            name, no_wrap=True, overflow="ellipsis", ratio=None if name in widths else 1, min_width=widths.get(name)
        )
    for row in summary.samples:
        table.add_row(row["id"], Text(" ".join(str(row["text"]).split())), row["label"], row["predicted"])
    return table


def next_steps(summary: Summary) -> list[tuple[str, str]]:
    """Commands to go on with, and what each is for."""
    table = str(summary.result["table"])
    return [
        (f"{_program('sparkinfer')} status {table}", "what is in the table, and which runs wrote it"),
        (
            f"{_program('mlflow')} ui --backend-store-uri {summary.tracking_uri}",
            "the run's parameters, figures, tables and sample rows",
        ),
        (f"{_program('sparkinfer')} run examples/job.yaml", "the same job from a file; copy it for your own table"),
        (f"{_program('sparkinfer')} demo --again", "everything once more"),
    ]


def _program(name: str) -> str:
    """How this environment's program is called here: by name where the shell finds it, else by its path."""
    own = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if not own.exists() or (found is not None and Path(found).resolve() == own.resolve()):
        return name
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)
