"""The layers of settings: keyword > Spark conf ``spark.sparkinfer.*`` > YAML ``conf/sparkinfer.yaml`` > code default."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from sparkinfer.config.document import Document, KeyPath, build, read_yaml
from sparkinfer.config.job import JobConfig, load_job
from sparkinfer.config.settings import Settings
from sparkinfer.errors import InvalidConfig

__all__ = ["JobConfig", "Settings", "load_job", "load_settings"]

SPARK_PREFIX = "spark.sparkinfer."
DEFAULT_YAML = Path("conf/sparkinfer.yaml")
#: Settings in bytes, which may be written with a unit as in Spark's own (``4g``).
_SIZES: tuple[KeyPath, ...] = (("engine", "kv_memory"), ("engine", "weights_memory"), ("engine", "memo_bytes"))
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def load_settings(
    keyword: Mapping[str, Any],
    spark_conf: Mapping[str, str] | None,
    yaml_path: Path | None,
) -> Settings:
    """Lay the four layers over each other and validate the result, strictly.

    Args:
        keyword: nested values such as ``{"model": "sample", "engine": {"strict": True}}``; the strongest layer.
        spark_conf: settings of the session; names that do not begin with ``spark.sparkinfer.`` are ignored.
        yaml_path: None takes ``$SPARKINFER_CONFIG``, else ``conf/sparkinfer.yaml`` of the current folder where it exists.

    Raises:
        InvalidConfig: an unknown key, a wrong type, or a value out of its range; names the key and where it was said.
    """
    layers = [_yaml_layer(yaml_path), _spark_layer(spark_conf or {}), _keyword_layer(keyword)]
    merged = Document({}, {})
    for layer in layers:
        _lay_over(merged.values, layer.values)
        merged.places.update(layer.places)
    for path in _SIZES:
        _replace_size(merged, path)
    return build(Settings, merged)


def _yaml_layer(path: Path | None) -> Document:
    named = path or (Path(env) if (env := os.environ.get("SPARKINFER_CONFIG")) else None)
    if named is not None:
        return read_yaml(named)
    return read_yaml(DEFAULT_YAML) if DEFAULT_YAML.is_file() else Document({}, {})


def _keyword_layer(keyword: Mapping[str, Any]) -> Document:
    places: dict[KeyPath, str] = {}
    _note(keyword, (), places)
    return Document(dict(keyword), places)


def _note(values: Mapping[str, Any], path: KeyPath, places: dict[KeyPath, str]) -> None:
    for name, value in values.items():
        places[(*path, name)] = "keyword argument"
        if isinstance(value, Mapping):
            _note(value, (*path, name), places)


def _spark_layer(conf: Mapping[str, str]) -> Document:
    document = Document({}, {})
    for name, text in conf.items():
        if not name.startswith(SPARK_PREFIX):
            continue
        path: KeyPath = tuple(name.removeprefix(SPARK_PREFIX).split("."))
        _put(document.values, path, _typed(path, text))
        document.places[path] = f"Spark conf {name}"
    return document


def _put(values: dict[str, Any], path: KeyPath, value: Any) -> None:
    for part in path[:-1]:
        inner = values.setdefault(str(part), {})
        if not isinstance(inner, dict):
            raise InvalidConfig(
                f"Spark conf {SPARK_PREFIX}{'.'.join(map(str, path))}: {part} holds one value, no keys below it."
            )
        values = inner
    values[str(path[-1])] = value


def _typed(path: KeyPath, text: str) -> Any:
    """A Spark conf's text as the plain value that YAML would read, but where the setting is a string."""
    hint: Any = Settings
    for part in path:
        hint = get_type_hints(hint).get(str(part)) if isinstance(hint, type) and is_dataclass(hint) else None
    if hint in (str, str | None):
        return text or None
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _lay_over(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for name, value in above.items():
        if isinstance(value, Mapping) and isinstance(below.get(name), dict):
            _lay_over(below[name], value)
        else:
            below[name] = dict(value) if isinstance(value, Mapping) else value


def _replace_size(document: Document, path: KeyPath) -> None:
    """``4g`` as bytes, in place."""
    values: Any = document.values
    for part in path[:-1]:
        values = values.get(part) if isinstance(values, dict) else None
    value = values.get(path[-1]) if isinstance(values, dict) else None
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", value.strip().lower())
        if match is None:
            raise InvalidConfig(
                f"{document.place(path)}: {'.'.join(map(str, path))} must be a size such as 4g or 536870912, not {value!r}."
            )
        values[path[-1]] = int(match[1]) * _UNITS[match[2]]
