"""What a model argument means: its kind and its parts, by its spelling and what lies on this disk; nothing is fetched."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from sparkinfer.errors import InvalidModelUri, ModelNotFound

_HUB_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HUB_ID = re.compile(rf"({_HUB_NAME}(?:/{_HUB_NAME})?)(?:@(\S+))?")
_REGISTRY = re.compile(r"models:/(?P<name>[^/@]+)(?:/(?P<version>[^/@]+)|@(?P<alias>[^/@]+))")
_FORMS = (
    "a hub id (org/name or org/name@revision), a folder, a .gguf file, models:/name/3, models:/name@alias, "
    "/Volumes/catalog/schema/volume/folder, or sample"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUri:
    """A model argument taken apart.

    Attributes:
        kind: ``hub | folder | gguf | mlflow | sample | fake``.
        location: hub id, absolute path, registered name, or the whole fake URI.
        revision: hub revision (branch, tag, commit) or registry version, where one was given.
        alias: registry alias.
    """

    kind: str
    location: str
    revision: str | None = None
    alias: str | None = None


def parse(uri: str) -> ModelUri:
    """Take a model argument apart.

    Raises:
        InvalidModelUri: no form that sparkinfer knows.
        ModelNotFound: it is a path, and nothing is there.
    """
    if not isinstance(uri, str) or not uri.strip() or uri != uri.strip() or "\x00" in uri:
        raise InvalidModelUri(
            f"The model must be named by a non-empty string without blanks around it, not {uri!r}: {_FORMS}."
        )
    if uri == "sample":
        return ModelUri(kind="sample", location=uri)
    if uri == "fake" or uri.startswith("fake:"):
        return ModelUri(kind="fake", location=uri)
    if uri.startswith("models:"):
        return _registry(uri)
    if _is_path(uri):
        return _path(uri)
    return _hub(uri)


def _registry(uri: str) -> ModelUri:
    match = _REGISTRY.fullmatch(uri)
    if match is None:
        raise InvalidModelUri(f"{uri!r} is no registry address; write models:/name/3 or models:/name@alias.")
    version = match["version"]
    if version is not None and not version.isdigit():
        raise InvalidModelUri(
            f"{uri!r} names no version number (stages and 'latest' move under a running job); "
            f"write models:/{match['name']}/3 or models:/{match['name']}@alias."
        )
    return ModelUri(kind="mlflow", location=match["name"], revision=version, alias=match["alias"])


def _is_path(uri: str) -> bool:
    looks = (
        uri.startswith(("/", "./", "../", "~", "file:", "dbfs:")) or uri in (".", "..") or uri.lower().endswith(".gguf")
    )
    return looks or ("://" not in uri and Path(uri).exists())


def _path(uri: str) -> ModelUri:
    text = re.sub(r"^dbfs:/+", "/dbfs/", re.sub(r"^file:/+", "/", uri))
    path = Path(text).expanduser().absolute()
    if not path.exists():
        raise ModelNotFound(f"{path} does not exist{_near(path)}.")
    if path.is_dir():
        return ModelUri(kind="folder", location=str(path))
    if path.suffix.lower() == ".gguf":
        return ModelUri(kind="gguf", location=str(path))
    raise InvalidModelUri(f"{path} is a file, but no .gguf file; name the model's folder.")


def _near(path: Path) -> str:
    """What lies nearby under almost this name, or which folder above is missing."""
    parent = path.parent
    if not parent.is_dir():
        while not parent.is_dir():
            path, parent = parent, parent.parent
        return f" (its folder {path} is missing already)"
    names = difflib.get_close_matches(path.name, sorted(p.name for p in parent.iterdir()), n=3, cutoff=0.5)
    return (
        f"; did you mean {' or '.join(names)} in {parent}?"
        if names
        else f" (in {parent} lies nothing with a name like it)"
    )


def _hub(uri: str) -> ModelUri:
    match = _HUB_ID.fullmatch(uri)
    if match is None or "--" in match[1] or ".." in match[1]:
        raise InvalidModelUri(f"{uri!r} is no model address; write {_FORMS}.")
    return ModelUri(kind="hub", location=match[1], revision=match[2])
