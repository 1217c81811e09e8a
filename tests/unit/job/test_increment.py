"""Which history lets a source be read by its changes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sparkinfer.job.increment import COMPLETE, last_complete
from sparkinfer.sink.base import PastCommit

ENDED = {
    COMPLETE: {
        "job": "digest",
        "source_id": "source",
        "source_version": 4,
        "source_rows": 100,
        "failed": 0,
        "compared_at": 1,
    }
}


def commit(version: int, run_id: str | None = "r1", *, operation: str = "WRITE", **beside: Any) -> PastCommit:
    metadata: Mapping[str, Any] = {} if run_id is None else {"run_id": run_id, **beside}
    return PastCommit(version=version, operation=operation, metadata=metadata)


def history(*commits: PastCommit) -> list[PastCommit]:
    """Newest first, on a table that was made and written once before."""
    return [*reversed(commits), commit(1, "r0"), commit(0, None, operation="CREATE TABLE")]


def test_a_complete_run_that_was_alone_is_found() -> None:
    found = last_complete(history(commit(2), commit(3, **ENDED)))
    assert found is not None
    assert (found.source_version, found.source_rows, found.compared_at) == (4, 100, 1)


@pytest.mark.parametrize("operation", ["OPTIMIZE", "VACUUM START", "VACUUM END"])
def test_upkeep_changes_no_rows(operation: str) -> None:
    commits = (
        commit(2),
        commit(3, None, operation=operation),
        commit(4, **ENDED),
        commit(5, None, operation=operation),
    )
    assert last_complete(history(*commits)) is not None


@pytest.mark.parametrize(
    "commits",
    [
        pytest.param((commit(2), commit(3)), id="interrupted"),
        pytest.param((commit(2), commit(3, **ENDED), commit(4, "r2")), id="another run afterwards"),
        pytest.param(
            (commit(2), commit(3, **ENDED), commit(4, None, operation="DELETE")), id="somebody's DELETE afterwards"
        ),
        pytest.param((commit(2), commit(3, **ENDED), commit(4, None, operation="RESTORE")), id="RESTORE afterwards"),
        pytest.param((commit(2), commit(3, "r2"), commit(4, **ENDED)), id="another run in between"),
        pytest.param((commit(3, **ENDED),), id="a commit is not in the log any more"),
        pytest.param((commit(2, **{COMPLETE: {"job": "digest"}}),), id="of another version of sparkinfer"),
        pytest.param((), id="only the run before"),
    ],
)
def test_after_anything_else_all_of_the_source_is_compared(commits: tuple[PastCommit, ...]) -> None:
    assert last_complete(history(*commits)) is None


def test_a_table_without_a_history_is_compared_whole() -> None:
    assert last_complete([]) is None
