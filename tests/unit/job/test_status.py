"""status() without a JVM, and its refusals. What it reads of a real job is tested with run()."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from sparkinfer import status
from sparkinfer.errors import InvalidConfig, SourceNotFound, TableSchemaMismatch
from sparkinfer.sink.base import BUCKETS_PROPERTY, Commit


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Two runs: four rows, one failed, one skipped, one twin."""
    path = str(tmp_path / "labels")
    rows = pa.table(
        {
            "answer": ["good", "good", None, None],
            "error_code": pa.array([None, None, "PROMPT_TOO_LONG", None], pa.string()),
            "finish_reason": ["stop", "stop", "error", "skipped"],
            "attempts": pa.array([1, 0, 1, 0], pa.int32()),
            "prompt_tokens": pa.array([10, 10, None, None], pa.int32()),
            "completion_tokens": pa.array([2, 2, None, None], pa.int32()),
            "model_name": ["tiny"] * 4,
            "config_hash": ["c"] * 4,
            "inferred_at": [datetime(2026, 1, 1, tzinfo=timezone.utc)] * 4,
        }
    )
    DeltaTable.create(path, schema=rows.schema, configuration={BUCKETS_PROPERTY: "2"}, raise_if_key_not_exists=False)
    for sequence, (run_id, part) in enumerate((("r1", rows.slice(0, 3)), ("r2", rows.slice(3)))):
        metadata = {
            "run_id": run_id,
            "model": "tiny",
            "model_version": "1",
            "output": "answer",
            "counts": {"rows": len(part)},
        }
        commit = Commit(table_id="t", bucket=0, sequence=sequence + 1, metadata=metadata)
        properties = CommitProperties(custom_metadata={"userMetadata": commit.user_metadata()})
        write_deltalake(path, part, mode="append", commit_properties=properties)
    return path


def test_rows_failures_tokens_and_runs_are_counted(table: str) -> None:
    found = status(table)
    assert (found.rows, found.failed, found.skipped, found.reused) == (4, 1, 1, 1)
    assert (found.failures, found.prompt_tokens, found.completion_tokens) == ({"PROMPT_TOO_LONG": 1}, 20, 4)
    assert (found.output, found.buckets, found.version, found.configs) == ("answer", 2, 2, 1)
    assert [(r.run_id, r.rows, r.last_version) for r in found.runs] == [("r2", 1, 2), ("r1", 3, 1)]


def test_no_pyspark_is_imported(table: str) -> None:
    code = f"import sys; from sparkinfer import status; status({table!r}); sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_table_another_table_and_a_bare_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="no Delta table"):
        status(str(tmp_path / "nothing"))
    write_deltalake(str(tmp_path / "other"), pa.table({"x": [1]}))
    with pytest.raises(TableSchemaMismatch, match="not a result table"):
        status(str(tmp_path / "other"))
    with pytest.raises(InvalidConfig, match="give its path"):
        status("main.a.labels")
