"""The one function that transformers calls instead of its own attention.

Keyword arguments do not reach attention in every model (stablelm and nemotron drop them), so the step's backend is handed
over in a context variable; the function itself only brings tensors and arguments into one form.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from sparkinfer.engine.attention.base import AttentionCall
from sparkinfer.errors import UnsupportedModel

IMPLEMENTATION = "sparkinfer_paged"


class Backend(Protocol):
    """Who answers the attention of a forward; :class:`sparkinfer.engine.attention.base.Attention` is one."""

    def forward(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """[T, heads, k_dim], [T, kv_heads, k_dim], [T, kv_heads, v_dim] -> [T, heads, v_dim]."""


_backend: ContextVar[Backend] = ContextVar("sparkinfer_attention_backend")


@contextmanager
def backend(active: Backend) -> Iterator[None]:
    """Within it, forwards of models set to :data:`IMPLEMENTATION` ask ``active``."""
    token = _backend.set(active)
    try:
        yield
    finally:
        _backend.reset(token)


def is_active() -> bool:
    """Whether a packed engine's forward runs."""
    return _backend.get(None) is not None


def register() -> None:
    """Make :data:`IMPLEMENTATION` known to transformers; repeating it changes nothing.

    No mask goes with it: for attention without one, transformers looks at no positions and makes none.
    """
    if IMPLEMENTATION not in AttentionInterface().valid_keys():
        AttentionInterface.register(IMPLEMENTATION, _attention)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, T, k_dim], key and value [1, kv_heads, T, dim] -> [1, T, heads, v_dim]."""
    if attention_mask is not None or position_bias is not None or not getattr(module, "is_causal", True):
        raise UnsupportedModel(
            f"{type(module).__name__} attends with a mask or bias of its own, which packed prompts cannot carry; "
            "use fallback=True."
        )
    call = AttentionCall(
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window or None,
        softcap=softcap,
        sinks=s_aux,
    )
    layer: Any = module.layer_idx
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return _backend.get().forward(layer, q, k, v, call)[None], None


def hide_from_compiler() -> None:
    """Let torch.compile end one piece of code before attention and begin another behind it."""
    register()
    AttentionInterface.register(IMPLEMENTATION, torch.compiler.disable(_attention))
