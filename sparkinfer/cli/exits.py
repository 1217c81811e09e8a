"""Exit codes of the command line, and which error gives which."""

from __future__ import annotations

from enum import IntEnum

from sparkinfer.errors import ConfigError, DeadlineReached, InvalidModelUri, SparkInferError


class ExitCode(IntEnum):
    """What a caller (Airflow, a shell, spark-submit) can act on."""

    DONE = 0
    FAILED = 1
    """The job failed, or rows failed and ``fail_on_error`` is true."""
    WRONG_USE = 2
    """Nothing ran: the command, the job file or the source is wrong."""
    FAILED_ROWS = 3
    """Done, and some rows failed; also when a repeat finds only old ones."""
    STOPPED = 4
    """Stopped early by a signal or the job's deadline; what is finished is kept."""


class Stopped(KeyboardInterrupt):
    """SIGTERM, so that it unwinds exactly as Ctrl-C does."""


def code_of(error: SparkInferError) -> ExitCode:
    """The exit code of an error that ends a command."""
    if isinstance(error, DeadlineReached):
        return ExitCode.STOPPED
    return ExitCode.WRONG_USE if isinstance(error, ConfigError | InvalidModelUri) else ExitCode.FAILED
