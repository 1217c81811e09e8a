"""What an exception of a writer means: one of our errors, read from its text and its causes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sparkinfer.errors import CommitConflict, CommitFailed, DiskFull, JobError, PermissionDenied, SparkInferError

_CONFLICT = re.compile(
    r"DELTA_CONCURRENT|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED|ConcurrentModification"
    r"|Concurrent(Append|DeleteRead|DeleteDelete|Transaction|Write|Modification)Exception"
    r"|(MetadataChanged|ProtocolChanged)Exception|Concurrent transaction failed|Failed to commit transaction: \d|[Cc]ommit conflict"
    r"|concurrent (delete|append|transaction)|[Mm]etadata changed since last commit"
)
_DISK_FULL = re.compile(r"No space left on device|ENOSPC|Disk quota exceeded|os error 28|os error 122")
_DENIED = re.compile(
    r"Permission denied|AccessControlException|AccessDenied|Read-only file system|EACCES|EROFS|os error 13|os error 30"
    r"|INSUFFICIENT_PERMISSIONS|PERMISSION_DENIED|does not have permission|DELTA_CANNOT_CREATE_LOG_PATH|Cannot create directory|Mkdirs failed to create|Unable to create.*director"
)


@contextmanager
def mapped(*, table: str, doing: str) -> Iterator[None]:
    """What a writer raises within becomes one of our errors; the arguments are those of :func:`job_error`."""
    try:
        yield
    except Exception as error:
        raise job_error(error, table=table, doing=doing) from error


def job_error(error: Exception, *, table: str, doing: str) -> SparkInferError:
    """The error of our tree that says what happened, where, and how to mend it.

    Args:
        error: what the writer raised.
        table: where it wrote to.
        doing: what it was doing, for the sentence: ``committing bucket 3``.
    """
    if isinstance(error, SparkInferError):
        return error
    text = _texts(error)
    found: type[JobError]
    if _CONFLICT.search(text):
        found, hint = CommitConflict, "another writer was faster"
    elif _DISK_FULL.search(text):
        found, hint = DiskFull, "no space is left; free some and run the job again"
    elif _DENIED.search(text):
        found, hint = (
            PermissionDenied,
            "no right there; check the folder's owner and mode, or name another place",
        )
    else:
        found, hint = CommitFailed, first_line(error)
    return found(
        f"{doing} of {table} failed: {hint}." if found is not CommitFailed else f"{doing} of {table} failed: {hint}"
    )


def first_line(error: BaseException) -> str:
    """The line of an exception's text that says most: JVM traces are cut."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        return lines[1].removeprefix(": ")
    return lines[0] if lines else type(error).__name__


def _texts(error: BaseException | None) -> str:
    """Class names and texts along the chain of causes; a JVM trace is part of the text of its Python exception."""
    parts: list[str] = []
    while error is not None and len(parts) < 10:
        parts.append(f"{type(error).__name__}: {error} {getattr(error, '_stackTrace', '') or ''}")
        error = error.__cause__ or error.__context__
    return "\n".join(parts)
