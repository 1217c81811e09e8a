"""The KV pool: for each layer one K and one V array of equal blocks. It knows nothing of who owns a block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sparkinfer.engine.attention.base import LayerShape


class KvPool:
    """Blocks of all layers, zeroed; memory of the host is taken page by page as blocks are first written.

    Args:
        shapes: one per attention layer.
        num_blocks: blocks a layer.
        block_size: tokens a block.
        dtype: element type.
        device: where the pool lives.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.keys = [_zeros((num_blocks, s.kv_heads, block_size, s.k_dim), dtype, device) for s in shapes]
        self.values = [_zeros((num_blocks, s.kv_heads, block_size, s.v_dim), dtype, device) for s in shapes]

    @property
    def num_bytes(self) -> int:
        """Bytes of all layers together."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


def block_bytes(shapes: Sequence[LayerShape], *, block_size: int, dtype: torch.dtype) -> int:
    """Bytes that one block takes over all layers."""
    per_token = sum(s.kv_heads * (s.k_dim + s.v_dim) for s in shapes)
    return per_token * block_size * dtype.itemsize


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type == "cpu" and dtype is torch.float32:
        # calloc: pages come when touched; torch.zeros writes them all.
        return torch.from_numpy(np.zeros(shape, np.float32))
    return torch.zeros(shape, dtype=dtype, device=device)
