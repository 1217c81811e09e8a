"""YAML files read with the line of every key, and plain values turned into frozen settings, strictly."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from sparkinfer.errors import InvalidConfig

T = TypeVar("T")
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """Plain values and where they were said.

    Attributes:
        values: nested mappings.
        places: path of a key -> where it stands, for people (``job.yaml, line 4``).
    """

    values: dict[str, Any]
    places: dict[KeyPath, str]

    def place(self, path: KeyPath) -> str:
        """Where the key, or the nearest one above it, was said."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        below = (place for known, place in self.places.items() if path and known[: len(path)] == path)
        return next(below, "settings")


def read_yaml(path: Path) -> Document:
    """Read a YAML mapping.

    Raises:
        InvalidConfig: the file is missing, no YAML, no mapping, or names a key twice.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InvalidConfig(f"The file {path} does not exist.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"The file {path} cannot be read: {error}.") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark is not None else str(path)
        raise InvalidConfig(f"{where}: this is no YAML ({getattr(error, 'problem', error)}).") from error
    if values is None:
        return Document({}, {(): str(path)})
    if not isinstance(values, dict):
        raise InvalidConfig(f"{path}: the file must hold keys and values such as `model: sample`.")
    places: dict[KeyPath, str] = {(): str(path)}
    _collect_places(node, (), str(path), places)
    return Document(values, places)


def _collect_places(node: Any, path: KeyPath, file: str, places: dict[KeyPath, str]) -> None:
    """Note the line of every key below ``node`` (a composed YAML node)."""
    if node.id == "sequence":
        for number, child in enumerate(node.value):
            places[(*path, number)] = f"{file}, line {child.start_mark.line + 1}"
            _collect_places(child, (*path, number), file, places)
    if node.id != "mapping":
        return
    for key, child in node.value:
        key_path = (*path, str(key.value))
        if key_path in places:
            raise InvalidConfig(
                f"{file}, line {key.start_mark.line + 1}: the key {key.value} stands here a second time."
            )
        places[key_path] = f"{file}, line {key.start_mark.line + 1}"
        _collect_places(child, key_path, file, places)


def build(cls: type[T], document: Document) -> T:
    """An instance of the frozen dataclass ``cls`` from plain values: no unknown keys, no converted types.

    Raises:
        InvalidConfig: names the key, where it stands, and the nearest known key or the type that it must have.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        text = json.dumps(document.values, default=str)
        return TypeAdapter(cls).validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        raise InvalidConfig(_explain(cls, document, error.errors(include_url=False)[0])) from error
    except InvalidConfig as error:  # a range that the dataclass itself checks
        raise InvalidConfig(f"{_place_of_range(document, error.message)}: {error.message}") from error


def _place_of_range(document: Document, message: str) -> str:
    """Where the key was said that a range check's message names."""
    words = message.split()
    found = (place for path, place in document.places.items() if path and str(path[-1]) in words)
    return next(found, document.place(()))


def _explain(cls: type, document: Document, error: Mapping[str, Any]) -> str:
    """One pydantic error as a sentence: where, which key, what is wrong, how to mend it."""
    path, kind, value = tuple(error["loc"]), str(error["type"]), error.get("input")
    while len(path) > 1 and path not in document.places and kind not in ("missing", "missing_argument"):
        path = path[:-1]  # pydantic adds the tried type of a union
    place, key = document.place(path), ".".join(str(part) for part in path)
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{place}: unknown key {key}; {_suggestion(cls, path)}."
    if kind in ("missing", "missing_argument"):
        return f"{place}: the key {key} is missing."
    hint = " (put it in quotes)" if "str" in kind and isinstance(value, bool | int | float) else ""
    message = str(error["msg"]).replace("Input should be", "must be").replace("Value error, ", "is wrong: ")
    return f"{place}: {key} {message}, not {value!r}{hint}."


def _suggestion(cls: type, path: KeyPath) -> str:
    known = known_keys(cls, path[:-1])
    near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}" if near else f"known are {', '.join(sorted(known))}"


def known_keys(cls: type, path: KeyPath) -> list[str]:
    """The field names of the dataclass at ``path`` below ``cls``."""
    for part in path:
        hint = get_type_hints(cls).get(str(part))
        nested = [t for t in (hint, *get_args(hint)) if isinstance(t, type) and is_dataclass(t)]
        if not nested:
            return []
        cls = nested[0]
    return [f.name for f in fields(cls)] if is_dataclass(cls) else []
