"""Exceptions of Spark as errors of our tree."""

from __future__ import annotations

import pytest

from sparkinfer.errors import DiskFull, EngineStartFailed, JobError, SparkInferError, StagingLost
from sparkinfer.job.failures import failure_of, stop_behind, stops_kept, translated

TRACEBACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
sparkinfer.errors.EngineStartFailed: [ENGINE_START_FAILED] The engine ended at once: no space for weights.
"""


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (TRACEBACK, EngineStartFailed, "The engine ended at once: no space for weights."),
        ("java.io.IOException: No space left on device", DiskFull, "no space is left"),
        ("[PATH_NOT_FOUND] Path does not exist: file:/t/_sparkinfer/1/pending", StagingLost, "Name a shared one"),
        ("something else\nat org.apache", JobError, "Inference of bucket 3 failed: something else"),
    ],
)
def test_the_cause_is_found_in_the_text(text: str, error: type[SparkInferError], says: str) -> None:
    found = failure_of(RuntimeError(text), doing="Inference of bucket 3", place="/t/_sparkinfer/1")
    assert type(found) is error
    assert says in found.message


def test_our_own_errors_pass_as_they_are() -> None:
    with pytest.raises(DiskFull, match="as it is"), translated("x", place="y"):
        raise DiskFull("as it is")


def test_a_stop_stays_a_stop_though_the_jvm_went_with_it() -> None:
    """SIGTERM to a process group ends the JVM too; what unwinds then meets a closed gateway."""
    with pytest.raises(KeyboardInterrupt), stops_kept(), translated("Inference of bucket 3", place="/t"):
        try:
            raise KeyboardInterrupt
        finally:
            raise ConnectionRefusedError(111, "Connection refused")


def test_only_what_a_stop_set_off_is_a_stop() -> None:
    with pytest.raises(ConnectionRefusedError) as refused, stops_kept():
        try:
            raise ValueError("no stop")
        finally:
            raise ConnectionRefusedError(111, "Connection refused")
    assert stop_behind(refused.value) is None
