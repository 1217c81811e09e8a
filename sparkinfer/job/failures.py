"""What an exception of a Spark job means: the worker's own error where it was one of ours, else a job error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sparkinfer.errors import CommitFailed, JobError, SparkInferError, StagingLost, all_errors
from sparkinfer.sink.faults import first_line, job_error

#: A traceback of a Python worker ends in this line; the class name finds the class again.
_WORKER_ERROR = re.compile(r"sparkinfer\.errors\.(\w+): \[[A-Z_]+\] (.+)")
_LOST = re.compile(r"PATH_NOT_FOUND|FILE_NOT_EXIST|FileNotFoundException|No such file or directory")


@contextmanager
def translated(doing: str, *, place: str) -> Iterator[None]:
    """Run Spark work; what it raises comes out as an error of our tree.

    Args:
        doing: for the sentence: ``Inference of bucket 3``.
        place: the folder that it works in.
    """
    try:
        yield
    except SparkInferError:
        raise
    except Exception as error:
        raise failure_of(error, doing=doing, place=place) from error


def failure_of(error: Exception, *, doing: str, place: str) -> SparkInferError:
    """The error of our tree for an exception of Spark."""
    text = str(error)
    own = _WORKER_ERROR.findall(text)
    if own:
        name, message = own[-1]
        classes = {cls.__name__: cls for cls in all_errors()}
        return classes.get(name, SparkInferError)(message.strip())
    if _LOST.search(text) and "_sparkinfer" in text:
        return StagingLost(
            f"{doing} failed: staged files in {place} are gone. Did something clean up, or is it a folder that not every machine "
            "of the cluster sees? Name a shared one with staging=."
        )
    found = job_error(error, table=place, doing=doing)
    return JobError(f"{doing} failed: {first_line(error)}") if isinstance(found, CommitFailed) else found


@contextmanager
def stops_kept() -> Iterator[None]:
    """A stop (Ctrl-C, SIGTERM) comes out as one, whatever fails while it unwinds.

    A signal to the whole process group (systemd, Airflow, ``timeout``) ends the JVM as well, so that everything that cleans
    up meets a closed gateway.
    """
    try:
        yield
    except Exception as error:
        stop = stop_behind(error)
        if stop is None:
            raise
        raise stop from None


def stop_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The stop during whose unwinding this error came up, or None."""
    before = error.__context__
    while before is not None and not isinstance(before, KeyboardInterrupt):
        before = before.__context__
    return before
