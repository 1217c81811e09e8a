"""Into how many buckets a table is cut, and how many tasks run at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkinfer.job.chunks import bucket_number, slot_count


@pytest.mark.parametrize(
    ("rows", "buckets"), [(0, 1), (100, 1), (400, 3), (2_000, 16), (100_000, 16), (5_000_000, 100), (10**9, 256)]
)
def test_small_tables_are_committed_on_their_way_and_large_ones_not_too_often(rows: int, buckets: int) -> None:
    assert bucket_number(rows) == buckets


@pytest.mark.parametrize("master", ["local[3]", "local[3,4]"])
def test_a_local_master_says_how_many_tasks_run_at_once(master: str) -> None:
    spark: Any = SimpleNamespace(conf={"spark.master": master})  # no job can run in it
    assert slot_count(spark) == 3
