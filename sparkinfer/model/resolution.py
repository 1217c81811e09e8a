"""From a model argument to a pinned model: done once, on the driver."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

from sparkinfer.errors import ModelError, ModelNotFound
from sparkinfer.model import fingerprint, gguf, hub, registry, sample
from sparkinfer.model.folder import check_folder, check_not_gguf_shard, weight_files
from sparkinfer.model.uri import ModelUri, parse
from sparkinfer.types import ModelRef

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM)


def resolve(
    uri: str,
    *,
    trust_remote_code: bool = False,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> ModelRef:
    """Pin a model: everything that moves (branch, alias) becomes a fixed version with a fingerprint.

    Args:
        uri: hub id[@revision], folder, .gguf file, models:/name/3, models:/name@alias, /Volumes/..., ``sample``, ``fake``.
        trust_remote_code: whether Python code that the model ships may run, and pickled weights be read.
        tracking_uri: MLflow tracking server; None is MLflow's own default.
        registry_uri: MLflow model registry; None is MLflow's own default.

    Raises:
        ModelError: the specific one; see :mod:`sparkinfer.errors`.
    """
    try:
        return _pinned(uri, trust_remote_code=trust_remote_code, tracking_uri=tracking_uri, registry_uri=registry_uri)
    except OSError as error:
        place = f" ({str(error.filename)[:200]})" if error.filename else ""
        what = f"The model {uri[:200]!r} cannot be read: {error.strerror or error}{place}."
        if error.errno in _NOT_THERE:
            advice = "Check its spelling, and that the user who runs the driver may read it."
            raise ModelNotFound(f"{what} {advice}") from error
        raise ModelError(f"{what} Look at the disk or mount, and try again.") from error


def _pinned(uri: str, *, trust_remote_code: bool, tracking_uri: str | None, registry_uri: str | None) -> ModelRef:
    parsed = parse(uri)
    if parsed.kind == "fake":
        return _fake(uri)
    if parsed.kind == "sample":
        return _sample(uri)
    if parsed.kind == "gguf":
        return _gguf(uri, Path(parsed.location))
    if parsed.kind == "folder":
        return _folder(uri, Path(parsed.location), trust_remote_code=trust_remote_code)
    if parsed.kind == "mlflow":
        return _registered(uri, parsed, tracking_uri=tracking_uri, registry_uri=registry_uri)
    return _hub(uri, parsed, trust_remote_code=trust_remote_code)


def _fake(uri: str) -> ModelRef:
    digest = hashlib.sha256(uri.encode()).hexdigest()
    return ModelRef(uri=uri, name="fake", version=digest[:12], fingerprint=digest, kind="fake", location=uri)


def _sample(uri: str) -> ModelRef:
    digest = sample.fingerprint()
    return ModelRef(
        uri=uri, name=sample.NAME, version=digest[:12], fingerprint=digest, kind="sample", location=sample.PACKAGE
    )


def _gguf(uri: str, path: Path) -> ModelRef:
    check_not_gguf_shard(path)
    gguf.check_readable(path)
    digest = fingerprint.combine({"gguf": fingerprint.of_file(path), "converter": gguf.CONVERTER_VERSION})
    return ModelRef(uri=uri, name=path.stem, version=digest[:12], fingerprint=digest, kind="gguf", location=str(path))


def _folder(uri: str, path: Path, *, trust_remote_code: bool) -> ModelRef:
    check_folder(path, trust_remote_code=trust_remote_code)
    digest = fingerprint.of_folder(path, weight_files(path, trust_remote_code=trust_remote_code))
    return ModelRef(uri=uri, name=path.name, version=digest[:12], fingerprint=digest, kind="folder", location=str(path))


def _registered(uri: str, parsed: ModelUri, *, tracking_uri: str | None, registry_uri: str | None) -> ModelRef:
    pinned = registry.pin(parsed, tracking_uri=tracking_uri, registry_uri=registry_uri)
    return ModelRef(
        uri=uri,
        name=parsed.location,
        version=pinned.version,
        fingerprint=pinned.fingerprint,
        kind="mlflow",
        location=f"models:/{parsed.location}/{pinned.version}",
        tracking_uri=pinned.tracking_uri,
        registry_uri=pinned.registry_uri,
    )


def _hub(uri: str, parsed: ModelUri, *, trust_remote_code: bool) -> ModelRef:
    pinned = hub.pin(parsed.location, parsed.revision, trust_remote_code=trust_remote_code)
    return ModelRef(
        uri=uri,
        name=parsed.location,
        version=pinned.commit,
        fingerprint=pinned.fingerprint,
        kind="hub",
        location=parsed.location,
        revision=pinned.commit,
    )
