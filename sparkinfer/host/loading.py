"""From a spec to an engine and its tokenizer: what the engine process and inline mode both do first."""

from __future__ import annotations

from pathlib import Path

from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.base import Engine
from sparkinfer.engine.create import create_engine
from sparkinfer.text.tokenizer import Tokenizer, load_tokenizer


def local_folder(spec: EngineSpec) -> Path | None:
    """The model's files on this host, fetched where needed; None for the fake, which has none."""
    if spec.model.kind == "fake":
        return None
    from sparkinfer.model import fetch  # the fake must not pay for the model layer

    return fetch(spec.model)


def load_engine(spec: EngineSpec, folder: Path | None) -> tuple[Engine, Tokenizer]:
    """The engine, ready to run, and its tokenizer."""
    return create_engine(spec, folder), load_tokenizer(folder, trust_remote_code=spec.trust_remote_code)
