"""Arrow arrays built from Python lists buffer by buffer.

``pyarrow.array`` imports pandas the first time it is called: almost two seconds, in every worker and in the engine process.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

#: How Python's ``array`` names the fixed-width types; a timestamp is its whole number of units.
_TYPECODES = (
    (pt.is_int32, "i"),
    (pt.is_int64, "q"),
    (pt.is_float32, "f"),
    (pt.is_float64, "d"),
    (pt.is_timestamp, "q"),
)


def column(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """An array of this type; None is null.

    Strings, lists, maps of strings, whole and floating-point numbers and timestamps; lone surrogates become U+FFFD.

    Raises:
        TypeError: another type; that is a bug.
    """
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _strings(kind, values)
    if pt.is_map(kind):
        pairs = list(chain.from_iterable(values))
        keys = column(kind.key_type, [key for key, _ in pairs])
        items = column(kind.item_type, [item for _, item in pairs])
        offsets = column(pa.int32(), list(accumulate(map(len, values), initial=0)))
        return pa.MapArray.from_arrays(offsets, keys, items)
    if pt.is_list(kind) or pt.is_large_list(kind):
        items = column(kind.value_type, list(chain.from_iterable(value or () for value in values)))
        lengths = [0 if value is None else len(value) for value in values]
        buffers = [_validity(values), _offsets(kind, lengths)]
        return pa.Array.from_buffers(kind, len(values), buffers, children=[items])
    for accepts, code in _TYPECODES:
        if accepts(kind):
            plain = array(code, [0 if value is None else value for value in values])
            return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(plain)])
    raise TypeError(f"no column of type {kind} can be built here")


def arrow_safe(text: str | None) -> str | None:
    """The text with lone surrogates as U+FFFD, which Arrow and Spark cannot hold; surrogate pairs become their character."""
    if text is None or text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _strings(kind: pa.DataType, values: Sequence[str | None]) -> pa.Array:
    encoded = [(arrow_safe(value) or "").encode() for value in values]
    buffers = [_validity(values), _offsets(kind, [len(text) for text in encoded]), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _offsets(kind: pa.DataType, lengths: Sequence[int]) -> pa.Buffer:
    is_large = pt.is_large_string(kind) or pt.is_large_list(kind)
    return pa.py_buffer(array("q" if is_large else "i", accumulate(lengths, initial=0)))


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    if None not in values:
        return None
    bits = bytearray((len(values) + 7) // 8)
    for index, value in enumerate(values):
        if value is not None:
            bits[index >> 3] |= 1 << (index & 7)
    return pa.py_buffer(bytes(bits))
