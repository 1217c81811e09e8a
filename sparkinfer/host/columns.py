"""Arrow arrays built from Python lists buffer by buffer.

``pyarrow.array`` imports pandas the first time it is called: almost two seconds, in every worker and in the engine process.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa


def integers(values: Sequence[int]) -> pa.Array:
    """An int64 array without nulls."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(array("q", values))])


def numbers(values: Sequence[float]) -> pa.Array:
    """A float64 array without nulls."""
    return pa.Array.from_buffers(pa.float64(), len(values), [None, pa.py_buffer(array("d", values))])


def strings(values: Sequence[str | None]) -> pa.Array:
    """A string array; lone surrogates, which have no UTF-8, become U+FFFD."""
    encoded = [b"" if value is None else _utf8(value) for value in values]
    buffers = [_validity(values), _offsets([len(text) for text in encoded]), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(values), buffers)


def string_lists(values: Sequence[Sequence[str | None]]) -> pa.Array:
    """A list-of-strings array without null lists."""
    return _lists(values, strings([item for items in values for item in items]))


def number_lists(values: Sequence[Sequence[float] | None]) -> pa.Array:
    """A list-of-float64 array."""
    return _lists(values, numbers([item for items in values for item in items or ()]))


def _lists(values: Sequence[Sequence[object] | None], items: pa.Array) -> pa.Array:
    buffers = [_validity(values), _offsets([0 if value is None else len(value) for value in values])]
    return pa.Array.from_buffers(pa.large_list(items.type), len(values), buffers, children=[items])


def _offsets(lengths: Sequence[int]) -> pa.Buffer:
    return pa.py_buffer(array("q", accumulate(lengths, initial=0)))


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    if None not in values:
        return None
    bits = bytearray((len(values) + 7) // 8)
    for index, value in enumerate(values):
        if value is not None:
            bits[index >> 3] |= 1 << (index & 7)
    return pa.py_buffer(bytes(bits))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
