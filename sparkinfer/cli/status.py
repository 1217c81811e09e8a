"""``sparkinfer status TABLE``: what stands in a result table and which runs wrote it. A path needs no Java."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from sparkinfer.cli import console
from sparkinfer.cli.exits import ExitCode
from sparkinfer.cli.quiet import log_of_its_own, quiet_session

if TYPE_CHECKING:
    from rich.console import Console

    from sparkinfer.job.status import TableStatus

RUNS_SHOWN = 10


def status(
    table: Annotated[str, typer.Argument(help="Path (with a /) or name of a result table.", metavar="TABLE")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> int:
    """Show rows, failures, tokens, models and runs of a result table; a path is read without Java."""
    people = console.people(as_json=as_json)
    found = look(table, people)
    for name, text in lines(found):
        people.print(Text.assemble((f"{name:<16}", "bold"), text))
    if as_json:
        console.print_json(found.to_dict())
    return ExitCode.DONE


def look(table: str, people: Console) -> TableStatus:
    """The table's status; a name is asked in a session of its own.

    Raises:
        SourceNotFound: there is no such table.
        TableSchemaMismatch: it is not a result table.
    """
    from sparkinfer import status as table_status

    if "/" in table or Path(table).is_dir():
        return table_status(table if "/" in table else f"./{table}")
    with log_of_its_own() as log, quiet_session("sparkinfer status", people=people, log=log, config={}) as spark:
        return table_status(table, spark)


def lines(found: TableStatus) -> list[tuple[str, str]]:
    """Name and text of each line."""
    told = [
        ("table", f"{found.table}, version {found.version}"),
        (
            "rows",
            f"{found.rows} ({found.failed} failed, {found.skipped} skipped, {found.reused} with the answer of an equal row)",
        ),
        *(("", f"{count} x {code}") for code, count in sorted(found.failures.items())),
        ("tokens", f"{found.prompt_tokens} in, {found.completion_tokens} out"),
        ("models", ", ".join(f"{name} ({count} rows)" for name, count in found.models.items()) or "none"),
        ("configurations", str(found.configs)),
    ]
    for run in found.runs[:RUNS_SHOWN]:
        commits = f"{run.commits} commits, versions {run.first_version} to {run.last_version}"
        told.append(
            ("run", f"{run.run_id}: {run.rows} rows in {commits}, {run.model} {run.model_version}, {run.last_commit}")
        )
    if len(found.runs) > RUNS_SHOWN:
        told.append(("", f"and {len(found.runs) - RUNS_SHOWN} older runs"))
    return told
