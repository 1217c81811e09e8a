"""Arrow arrays -> requests: each value as the canonical text that the hash, the prompt and the wire share.

Strings are read as bytes: Spark does not check them, and text that is no UTF-8 must neither kill the task nor change the hash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from sparkinfer.config.specs import TaskSpec
from sparkinfer.errors import WrongColumnType
from sparkinfer.hashing import ABSENT, NULL_TAG, PARAMS_NAME, InputHasher, canonical_json
from sparkinfer.types import Request

#: Warning of a row with a string that is no UTF-8; it is read with U+FFFD for the broken bytes.
INVALID_UTF8 = "INVALID_UTF8"

#: Bytes of each row's canonical text, None where null.
Texts: TypeAlias = list[bytes | None]

#: Reads a column; adds the rows whose text had to be mended to the set (plain strings stay as they are: their bytes are hashed).
ReadColumn: TypeAlias = Callable[[pa.Array, set[int]], Texts]


class RowReader:
    """Reads the UDF's arguments of a run of rows.

    Args:
        task: names of the arguments, and their order.
    """

    def __init__(self, task: TaskSpec) -> None:
        self._names = task.names
        self._hasher = InputHasher(task.names)

    def check(self, columns: Sequence[pa.Array]) -> None:
        """Refuse wrong columns before an engine is started.

        Raises:
            WrongColumnType: a column that has no canonical text, or more or fewer columns than arguments.
        """
        count = len(self._names)
        if len(columns) not in (count, count + 1):
            raise WrongColumnType(
                f"llm_udf got {len(columns)} columns for the arguments {list(self._names)}; give one each, in this order, "
                "and the params struct last where there is one."
            )
        for name, column in zip(self._names, columns, strict=False):
            _value_reader(name, column.type)
        if len(columns) > count:
            _check_params(columns[count].type)

    def read(self, columns: Sequence[pa.Array], first_row: int) -> list[Request]:
        """Requests of these rows, numbered from ``first_row`` on."""
        count, rows = len(self._names), len(columns[0])
        broken: set[int] = set()
        tags, texts = [], []
        for name, column in zip(self._names, columns, strict=False):
            tag, read = _value_reader(name, column.type)
            tags.append(tag)
            texts.append(read(column, broken))
        params = _read_params(columns[count], broken) if len(columns) > count else [ABSENT] * rows
        return [
            self._request(first_row + i, [text[i] for text in texts], tags, params[i], is_broken=i in broken)
            for i in range(rows)
        ]

    def _request(self, row: int, values: Texts, tags: Sequence[str], params: Any, *, is_broken: bool) -> Request:
        try:
            decoded = tuple(None if value is None else value.decode() for value in values)
        except UnicodeDecodeError:
            is_broken = True
            decoded = tuple(None if value is None else value.decode("utf-8", "replace") for value in values)
        return Request(
            row=row,
            values=decoded,
            tags="".join(NULL_TAG if value is None else tag for value, tag in zip(values, tags, strict=True)),
            input_hash=self._hasher.digest(values, "".join(tags), params),
            params_json=params.decode() if isinstance(params, bytes) else None,
            warnings=(INVALID_UTF8,) if is_broken else (),
        )


def _value_reader(name: str, kind: pa.DataType) -> tuple[str, ReadColumn]:
    """The type's tag and how to read it."""
    for accepts, tag, read in _READERS:
        if accepts(kind):
            return tag, read
    raise WrongColumnType(
        f"Column for {name!r} is of type {kind}, which has no exact text; cast it to string, "
        f"for example col({name!r}).cast('string')."
    )


def _is_string(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _read_strings(column: pa.Array, _broken: set[int]) -> Texts:
    return column.cast(pa.large_binary() if pt.is_large_string(column.type) else pa.binary()).to_pylist()


def _read_nulls(column: pa.Array, _broken: set[int]) -> Texts:
    return [None] * len(column)


def _read_as(text: Callable[[Any], str]) -> ReadColumn:
    def read(column: pa.Array, _broken: set[int]) -> Texts:
        return [None if value is None else text(value).encode() for value in column.to_pylist()]

    return read


def _read_dates(column: pa.Array, _broken: set[int]) -> Texts:
    # Years beyond 9999 have a sign in Spark's text, and no Python date.
    texts = column.cast(pa.string()).to_pylist()
    return [None if t is None else (f"+{t}" if len(t) > 10 and t[0] != "-" else t).encode() for t in texts]


def _is_messages(kind: pa.DataType) -> bool:
    if not (pt.is_list(kind) or pt.is_large_list(kind)) or not pt.is_struct(kind.value_type):
        return False
    fields = list(kind.value_type)
    return {"role", "content"} <= {f.name for f in fields} and all(
        _is_string(f.type) or pt.is_null(f.type) for f in fields
    )


def _read_messages(column: pa.Array, broken: set[int]) -> Texts:
    return [None if messages is None else canonical_json(messages).encode() for messages in _read_tree(column, broken)]


def _read_tree(column: pa.Array, broken: set[int]) -> list[Any]:
    """Nested values as Python ones; strings are read as bytes and decoded with replacement."""
    rows = column.cast(_with_bytes(column.type)).to_pylist(maps_as_pydicts="strict")
    for index, row in enumerate(rows):
        try:
            rows[index] = _decoded(row, "strict")
        except UnicodeDecodeError:
            broken.add(index)
            rows[index] = _decoded(row, "replace")
    return rows


def _with_bytes(kind: pa.DataType) -> pa.DataType:
    if _is_string(kind):
        return pa.large_binary() if pt.is_large_string(kind) else pa.binary()
    if pt.is_list(kind) or pt.is_large_list(kind):
        return pa.list_(_with_bytes(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, _with_bytes(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(_with_bytes(kind.key_type), _with_bytes(kind.item_type))
    return kind


def _decoded(value: Any, errors: str) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors)
    if isinstance(value, list):
        return [_decoded(item, errors) for item in value]
    if isinstance(value, dict):
        return {_decoded(key, errors): _decoded(item, errors) for key, item in value.items()}
    return value


_READERS: tuple[tuple[Callable[[pa.DataType], bool], str, ReadColumn], ...] = (
    (_is_string, "s", _read_strings),
    (pt.is_integer, "i", _read_as(str)),
    (pt.is_boolean, "b", _read_as(lambda value: "true" if value else "false")),
    (pt.is_date32, "d", _read_dates),
    (pt.is_decimal, "n", _read_as(lambda value: format(value, "f"))),
    (_is_messages, "m", _read_messages),
    (pt.is_null, NULL_TAG, _read_nulls),
)


def _check_params(kind: pa.DataType) -> None:
    if pt.is_null(kind):
        return
    if pt.is_map(kind) and _is_string(kind.key_type) and _is_param(kind.item_type):
        return
    if pt.is_struct(kind) and all(_is_param(field.type) for field in kind):
        return
    raise WrongColumnType(
        f"Column for {PARAMS_NAME!r} is of type {kind}; give a struct such as struct(16 AS max_tokens), or a map from string."
    )


def _is_param(kind: pa.DataType) -> bool:
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _is_string(kind.value_type)
    checks = (_is_string, pt.is_integer, pt.is_boolean, pt.is_float32, pt.is_float64, pt.is_decimal, pt.is_null)
    return any(check(kind) for check in checks)


def _read_params(column: pa.Array, broken: set[int]) -> Texts:
    return [None if row is None else canonical_json(_given(row)).encode() for row in _read_tree(column, broken)]


def _given(params: dict[str, Any]) -> dict[str, Any]:
    """The fields that are set; decimals (SQL's ``0.7``) as the floats they stand for."""
    return {
        name: float(value) if isinstance(value, Decimal) else value
        for name, value in params.items()
        if value is not None
    }
