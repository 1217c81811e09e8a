"""The command line: one application, one file per command; errors become one line and an exit code."""

from __future__ import annotations

import logging
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any

import typer

from sparkinfer.cli import console
from sparkinfer.cli.demo import demo
from sparkinfer.cli.doctor import doctor
from sparkinfer.cli.exits import ExitCode, Stopped, code_of
from sparkinfer.cli.run import run
from sparkinfer.cli.status import status
from sparkinfer.errors import SparkInferError
from sparkinfer.job.failures import stop_behind

DEBUG = "--debug"
#: What typer makes of Ctrl-C (older ones: Abort).
INTERRUPTED = 130
#: Base class of every wrong use of the command line; newer typer carries click inside, older ones import it.
_UsageError: Any = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="sparkinfer",
    help="Offline LLM inference inside Spark: label a table, resume what was stopped, see what is there.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(demo)
app.command()(run)
app.command()(status)
app.command()(doctor)


@app.callback()
def _options(
    debug: bool = typer.Option(False, DEBUG, help="Show the whole traceback of an error; anywhere on the line."),
) -> None:
    """Offline LLM inference inside Spark: label a table, resume what was stopped, see what is there."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: without the program's name; None: those of this process.

    Returns:
        The exit code, see :class:`sparkinfer.cli.exits.ExitCode`.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        return _run(given)
    except KeyboardInterrupt:
        console.print_error("Stopped. What was finished is kept; run the same command again to go on.")
        return ExitCode.STOPPED
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(given: Sequence[str]) -> int:
    """The command's exit code; an error is one line, or with --debug the whole traceback before it."""
    try:
        words = [word for word in given if word != DEBUG]
        code = int(app(args=words, prog_name="sparkinfer", standalone_mode=False) or ExitCode.DONE)
        if code == INTERRUPTED:
            raise Stopped
        return code
    except typer.Abort as error:
        raise Stopped from error
    except Exception as error:
        if isinstance(error, _UsageError):
            error.show()
            return ExitCode.WRONG_USE
        if stop_behind(error) is not None:  # a signal to the whole group ends the JVM too, and cleaning up met that
            raise Stopped from error
        if DEBUG in given:
            traceback.print_exc()
        return _report(error)


def _report(error: Exception) -> ExitCode:
    if isinstance(error, SparkInferError):
        console.print_error(str(error))
        return code_of(error)
    console.print_error(f"[UNEXPECTED] {type(error).__name__}: {error} ({DEBUG} shows where it happened)")
    return ExitCode.FAILED


def _stop(_number: int, _frame: FrameType | None) -> None:
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # a JVM that ends with us is no news
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
