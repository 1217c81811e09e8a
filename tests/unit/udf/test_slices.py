"""Spark's batches, cut by rows and bytes."""

from __future__ import annotations

import pyarrow as pa

from sparkinfer.udf.slices import Slices


def taken(batch: pa.Array, *, rows: int, max_bytes: int) -> list[list[str]]:
    slices = Slices(iter([batch]))
    cuts = []
    while (columns := slices.take(rows, max_bytes=max_bytes)) is not None:
        cuts.append(columns[0].to_pylist())
    return cuts


def test_a_cut_holds_no_more_rows_and_no_more_bytes_than_asked_for() -> None:
    texts = ["x" * 1000] * 100
    cuts = taken(pa.array(texts), rows=64, max_bytes=10_000)
    assert [text for cut in cuts for text in cut] == texts
    assert 1 < max(map(len, cuts)) <= 10
    assert [len(cut) for cut in taken(pa.array(texts), rows=64, max_bytes=1 << 20)] == [64, 36]


def test_a_row_that_is_too_large_by_itself_goes_alone() -> None:
    texts = ["a", "b" * 5000, "c"]
    assert taken(pa.array(texts), rows=64, max_bytes=1000) == [["a"], ["b" * 5000], ["c"]]
