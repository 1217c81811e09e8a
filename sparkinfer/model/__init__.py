"""Where weights come from: hub, folder, GGUF file, model registry; pinned once, fetched once a host, loaded by the engine.

``resolve`` and ``fetch`` import neither torch nor transformers; ``load`` brings both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkinfer.model.local import fetch
from sparkinfer.model.resolution import resolve

if TYPE_CHECKING:
    from sparkinfer.model.loading import load

__all__ = ["fetch", "load", "resolve"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from sparkinfer.model.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
