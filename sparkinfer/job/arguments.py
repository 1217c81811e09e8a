"""What ``run()`` was given, looked at before anything is read, resolved or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkinfer.errors import InvalidConfig
from sparkinfer.sink.location import absolute

_NAMES = "a column's name or a list of names"


def check_arguments(**given: Any) -> None:
    """Each argument of ``run()`` by its name; those that are not given here are checked where they are used.

    Raises:
        InvalidConfig: one has a type or value that cannot be meant; says which, what it should be and what it is.
    """
    checks = {
        "source": (_is_source, "a table's name, a path as text, or a DataFrame"),
        "into": (_is_sink, "a table's name, a path as text, or a sink"),
        "columns": (_is_mapping_of_names, "a dict: argument of the UDF -> column of the source"),
        "key": (lambda value: value is None or _are_names(value), f"{_NAMES}, or None"),
        "keep": (_are_names, _NAMES),
        "output": (_is_name, "a column's name"),
        "buckets": (_is_count, "a whole number from 1 on, or None"),
        "on_progress": (lambda value: value is None or callable(value), "something to call, or None"),
        "tracker": (lambda value: value is None or hasattr(value, "start"), "a Tracker, or None"),
    }
    for name, value in given.items():
        is_right, wanted = checks[name]
        if not is_right(value):
            raise InvalidConfig(f"run(): {name} must be {wanted}, not {_shown(value)}.")
    source, into = given.get("source"), given.get("into")
    if isinstance(source, str) and isinstance(into, str) and absolute(source) == absolute(into):
        raise InvalidConfig(
            f"run(): source and into are both {source!r}; the answers would replace their own input. Name another table."
        )


def _is_source(value: object) -> bool:
    return _is_name(value) or (not isinstance(value, str) and hasattr(value, "schema"))


def _is_sink(value: object) -> bool:
    return _is_name(value) or (not isinstance(value, str) and hasattr(value, "facts"))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_names(value: object) -> bool:
    return _is_name(value) or (
        isinstance(value, Sequence) and not isinstance(value, str) and all(_is_name(name) for name in value)
    )


def _is_mapping_of_names(value: object) -> bool:
    return value is None or (isinstance(value, Mapping) and all(_is_name(n) for pair in value.items() for n in pair))


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


def _shown(value: object) -> str:
    is_short = isinstance(value, str | int | float | bool | list | tuple | dict) and len(repr(value)) <= 80
    return repr(value) if is_short else type(value).__name__
