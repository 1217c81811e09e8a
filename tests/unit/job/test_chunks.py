"""Into how many buckets a table is cut."""

from __future__ import annotations

import pytest

from sparkinfer.job.chunks import bucket_number


@pytest.mark.parametrize(
    ("rows", "buckets"), [(0, 1), (100, 1), (400, 3), (2_000, 16), (100_000, 16), (5_000_000, 100), (10**9, 256)]
)
def test_small_tables_are_committed_on_their_way_and_large_ones_not_too_often(rows: int, buckets: int) -> None:
    assert bucket_number(rows) == buckets
