"""Exceptions of Spark as errors of our tree."""

from __future__ import annotations

import pytest

from sparkinfer.errors import DiskFull, EngineStartFailed, JobError, SparkInferError, StagingLost
from sparkinfer.job.failures import failure_of, translated

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
