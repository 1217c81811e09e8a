"""A Spark session whose own chatter goes into a file, so that people see the job."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sparkinfer.errors import JobError, SparkInferError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

#: Ivy, the launcher and log4j write here; kept so that a start that fails can be looked into.
LOG_NAME = "spark.log"


@contextlib.contextmanager
def quiet_session(app: str, *, people: Console, log: Path, config: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session for one command, stopped at its end if it was started here.

    Args:
        app: name of the application.
        people: who is told that it starts.
        log: file that takes the JVM's standard error.
        config: settings of the session.

    Raises:
        JavaNotFound: no Java, or one too old.
        MissingDependency: pyspark is not installed.
        JobError: Spark did not start; the message names the file that says why.
    """
    from sparkinfer import session

    running = _running()
    if running is None:
        people.print(f"Starting Spark; the first time it fetches Delta's jars, about 90 MB (its own messages: {log})")
    try:
        with _stderr_into(log):
            spark = session(app, config=config)
    except SparkInferError:
        raise
    except Exception as error:
        raise JobError(f"Spark did not start ({type(error).__name__}); its own messages are in {log}.") from error
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


@contextlib.contextmanager
def log_of_its_own() -> Iterator[Path]:
    """A file for a session's own messages in a new temporary folder, which is kept only where the block raises."""
    folder = Path(tempfile.mkdtemp(prefix="sparkinfer-"))
    yield folder / LOG_NAME
    shutil.rmtree(folder, ignore_errors=True)


def _running() -> SparkSession | None:
    """The session that spark-submit or a notebook has already."""
    pyspark = sys.modules.get("pyspark.sql")
    return None if pyspark is None else pyspark.SparkSession.getActiveSession()


@contextlib.contextmanager
def _stderr_into(log: Path) -> Iterator[None]:
    """What is started meanwhile inherits this file as its standard error, and keeps it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
