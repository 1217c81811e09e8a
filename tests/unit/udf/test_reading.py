"""Arrow values as canonical text."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from sparkinfer.config.specs import TaskSpec
from sparkinfer.errors import WrongColumnType
from sparkinfer.hashing import input_hash
from sparkinfer.types import SamplingParams
from sparkinfer.udf.reading import RowReader

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def _read(*columns: pa.Array, names=("a",)):
    reader = RowReader(TaskSpec(prompt=None, names=names))
    reader.check(columns)
    return reader.read(columns, 0)


@pytest.mark.parametrize(
    ("array", "tag", "texts"),
    [
        (pa.array(["", "null", None, "a\x00b", "🙂"]), "s", ["", "null", None, "a\x00b", "🙂"]),
        (pa.array([1, None, -(2**63)], pa.int64()), "i", ["1", None, "-9223372036854775808"]),
        (pa.array([True, None, False]), "b", ["true", None, "false"]),
        (pa.array([date(1, 1, 1), None, date(2024, 2, 29)]), "d", ["0001-01-01", None, "2024-02-29"]),
        (pa.array([3_000_000, -800_000], pa.date32()), "d", ["+10183-09-21", "-0221-09-04"]),
        (
            pa.array([Decimal("0.0000001"), None, Decimal("-12")], pa.decimal128(20, 7)),
            "n",
            ["0.0000001", None, "-12.0000000"],
        ),
        (pa.nulls(2), "0", [None, None]),
        (pa.array(["x"], pa.large_string()), "s", ["x"]),
    ],
)
def test_values_have_their_canonical_text_and_tag(array, tag, texts):
    requests = _read(array)
    assert [request.values for request in requests] == [(text,) for text in texts]
    assert [request.tags for request in requests] == ["0" if text is None else tag for text in texts]
    assert [request.row for request in requests] == list(range(len(texts)))


def test_the_hash_is_that_of_hashing():
    (request,) = _read(pa.array(["ok"]), pa.array([7]), names=("a", "b"))
    assert request.input_hash == input_hash(["a", "b"], [b"ok", b"7"], "si")


def test_messages_are_json_with_their_nulls():
    rows = [None, [], [{"role": "user", "content": None}], [{"role": "user", "content": "hi"}, None]]
    texts = [request.values[0] for request in _read(pa.array(rows, MESSAGES))]
    assert texts == [None, "[]", '[{"content":null,"role":"user"}]', '[{"content":"hi","role":"user"},null]']


def test_broken_text_inside_messages_is_replaced_and_flagged():
    fields = [
        pa.array([b"user", b"user"], pa.binary()).view(pa.string()),
        pa.array([b"\xff", b"ok"], pa.binary()).view(pa.string()),
    ]
    items = pa.StructArray.from_arrays(fields, names=["role", "content"])
    first, second = _read(pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), items))
    assert first.warnings == ("INVALID_UTF8",)
    assert json.loads(first.values[0]) == [{"content": "\ufffd", "role": "user"}]
    assert second.warnings == ()


@pytest.mark.parametrize(
    "kind",
    [
        pa.float64(),
        pa.timestamp("us"),
        pa.binary(),
        pa.list_(pa.string()),
        pa.struct([("a", pa.int32())]),
        pa.time64("us"),
    ],
)
def test_types_without_an_exact_text_are_refused(kind):
    with pytest.raises(WrongColumnType, match="cast it to string"):
        _read(pa.nulls(1, kind))


def test_too_many_columns_are_refused():
    with pytest.raises(WrongColumnType, match="3 columns"):
        _read(pa.array(["a"]), pa.array(["b"]), pa.array(["c"]))


def test_params_keep_what_is_set_and_their_floats_exactly():
    kind = pa.struct(
        [
            ("temperature", pa.float64()),
            ("max_tokens", pa.int32()),
            ("top_p", pa.decimal128(2, 1)),
            ("stop", pa.list_(pa.string())),
        ]
    )
    rows = [{"temperature": 0.1, "max_tokens": None, "top_p": Decimal("0.7"), "stop": ["\n"]}, None]
    first, second = _read(pa.array(["x", "x"]), pa.array(rows, kind))
    merged = SamplingParams(max_tokens=9).merged(first.params_json)
    assert (merged.temperature, merged.max_tokens, merged.top_p, merged.stop) == (0.1, 9, 0.7, ("\n",))
    assert second.params_json is None
    plain = _read(pa.array(["x"]))[0]
    assert len({first.input_hash, second.input_hash, plain.input_hash}) == 3


def test_params_of_a_type_that_cannot_be_read_are_refused():
    with pytest.raises(WrongColumnType, match="max_tokens"):
        _read(pa.array(["x"]), pa.array(["{}"]))
