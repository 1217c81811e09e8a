"""From a model argument to a pinned model: done once, on the driver."""

from __future__ import annotations

import hashlib

from sparkinfer.model import sample
from sparkinfer.model.uri import parse
from sparkinfer.types import ModelRef


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
    parsed = parse(uri)
    if parsed.kind == "fake":
        return _fake(uri)
    if parsed.kind == "sample":
        return _sample(uri)
    raise NotImplementedError(parsed)


def _fake(uri: str) -> ModelRef:
    digest = hashlib.sha256(uri.encode()).hexdigest()
    return ModelRef(uri=uri, name="fake", version=digest[:12], fingerprint=digest, kind="fake", location=uri)


def _sample(uri: str) -> ModelRef:
    digest = sample.fingerprint()
    return ModelRef(
        uri=uri, name=sample.NAME, version=digest[:12], fingerprint=digest, kind="sample", location=sample.PACKAGE
    )
