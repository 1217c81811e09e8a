"""``sparkinfer doctor``: what this machine has and lacks, each a line with the fix. Starts no engine and no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from sparkinfer.cli import console
from sparkinfer.cli.checks import compute, reach, runtime
from sparkinfer.cli.checks.base import Check, Level, fail
from sparkinfer.cli.exits import ExitCode
from sparkinfer.config.settings import Settings
from sparkinfer.types import ModelRef

STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


def doctor(
    model: Annotated[
        str | None, typer.Option(help="Model to look for; default: the configured one, else sample.", metavar="MODEL")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> int:
    """Check Java, Spark, Delta, torch, devices, memory, disk, model and tracking, each with its fix."""
    people = console.people(as_json=as_json)
    found = []
    for check in examine(model):
        found.append(check)
        people.print(_line(check))
    worst = Level.FAIL if any(c.level is Level.FAIL for c in found) else Level.OK
    if as_json:
        console.print_json({"ok": worst is Level.OK, "checks": [asdict(c) for c in found]})
    return ExitCode.FAILED if worst is Level.FAIL else ExitCode.DONE


def examine(model: str | None) -> Iterator[Check]:
    """Every check in its order; the slow one (torch's import) runs meanwhile."""
    with ThreadPoolExecutor(max_workers=1) as background:
        torch = background.submit(compute.check_torch)
        settings, problem = _settings()
        for check in (runtime.check_python, runtime.check_java, runtime.check_spark, runtime.check_delta):
            yield _safely(check)
        if problem is not None:
            yield problem
        yield from torch.result()
        found, ref = reach.check_model(model or settings.model or "sample")
        yield found
        yield _safely(lambda: _memory(ref))
        for check in (reach.check_disk, reach.check_socket, reach.check_watch):
            yield _safely(check)
        yield _safely(lambda: reach.check_tracking(settings.tracking_uri))


def _safely(check: Callable[[], Check]) -> Check:
    """A check that breaks is a finding too."""
    try:
        return check()
    except Exception as error:
        name = getattr(check, "__name__", "check").removeprefix("check_")
        return fail(name, f"{type(error).__name__}: {error}", "This is a bug of sparkinfer; please report it.")


def _settings() -> tuple[Settings, Check | None]:
    from sparkinfer.config.load import load_settings
    from sparkinfer.errors import ConfigError

    try:
        return load_settings({}, None, None), None
    except ConfigError as error:
        return Settings(), fail("settings", error.message, "Correct the file.")


def _memory(ref: ModelRef | None) -> Check:
    from sparkinfer.model import memory

    return compute.check_memory(memory.available(), memory.limit(), None if ref is None else memory.weights_bytes(ref))


def _line(check: Check) -> Text:
    line = Text.assemble((f"{check.level.value:<5}", STYLES[check.level]), (f"{check.name:<17}", "bold"), check.detail)
    if check.fix:
        line.append(f"\n{'':<22}fix: {check.fix}", style="dim")
    return line
