"""Arrow arrays built by hand: the same as pyarrow's own."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sparkinfer.host.columns import column


@pytest.mark.parametrize("values", [[], [None], [None, "", "a", None, "grüß 😀", *"0123456789"]])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_strings(kind: pa.DataType, values: list[Any]) -> None:
    check(kind, values)


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.timestamp("us", tz="UTC")])
def test_numbers_and_times(kind: pa.DataType) -> None:
    check(kind, [])
    check(kind, [3, 1, 2])
    check(kind, [None, *range(20), None])


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64())])
def test_lists(kind: pa.DataType) -> None:
    check(kind, [])
    check(kind, [[0.5, 1.5], None, [], [-2.0]])


def test_maps() -> None:
    kind = pa.map_(pa.string(), pa.string())
    check(kind, [])
    check(kind, [[("a", "b"), ("c", None)], [], [("ä", "")]])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        column(pa.int32(), [2**40])
    with pytest.raises(TypeError, match="date32"):
        column(pa.date32(), [])


def check(kind: pa.DataType, values: list[Any]) -> None:
    built = column(kind, values)
    built.validate(full=True)
    assert built.type == kind
    assert built.equals(pa.array(values, kind))
