"""Paged attention in plain torch, one sequence after the other: slow, on any device, the oracle of every other kernel."""

from __future__ import annotations

import torch

from sparkinfer.engine.attention.base import AttentionCall, PackedBatch
from sparkinfer.engine.kv import KvPool


class ReferenceAttention:
    """Implements :class:`sparkinfer.engine.attention.base.Attention`."""

    name = "reference"

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        self._batch: PackedBatch | None = None

    def begin(self, batch: PackedBatch) -> None:
        """Remember the batch."""
        self._batch = batch

    def forward(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """Store, then attend sequence by sequence."""
        batch, pool = self._batch, self._pool
        assert batch is not None, "begin() comes before forward(). This is a bug."
        slots = torch.from_numpy(batch.slots).to(query.device)
        blocks, offsets = slots // pool.block_size, slots % pool.block_size
        pool.keys[layer][blocks, :, offsets] = key.to(pool.keys[layer].dtype)
        pool.values[layer][blocks, :, offsets] = value.to(pool.values[layer].dtype)
        out = query.new_empty(query.shape[0], query.shape[1], value.shape[-1])
        for index, length in enumerate(batch.context_lens.tolist()):
            first, last = int(batch.query_starts[index]), int(batch.query_starts[index + 1])
            table = torch.from_numpy(batch.tables[index, : -(-length // pool.block_size)]).to(query.device)
            keys = _gathered(pool.keys[layer], table, length)
            values = _gathered(pool.values[layer], table, length)
            out[first:last] = _attend(query[first:last], keys, values, call)
        return out


def _gathered(blocks: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """[num_blocks, kv_heads, block_size, dim] -> [kv_heads, length, dim] of one sequence."""
    return blocks[table].transpose(0, 1).flatten(1, 2)[:, :length]


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, call: AttentionCall) -> torch.Tensor:
    """The last len(query) positions over the whole context: [q, heads, k_dim] -> [q, heads, v_dim]."""
    num_queries, heads, _ = query.shape
    kv_heads, length, _ = keys.shape
    groups = heads // kv_heads
    q = query.transpose(0, 1).float()
    k, v = (t.float().repeat_interleave(groups, 0) for t in (keys, values))
    scores = q @ k.transpose(1, 2) * call.scaling  # [heads, q, length]
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    position = torch.arange(length - num_queries, length, device=query.device)[:, None]
    seen = torch.arange(length, device=query.device)[None, :]
    hidden = seen > position
    if call.window is not None:
        hidden |= seen <= position - call.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if call.sinks is not None:
        sinks = call.sinks.float().view(-1, 1, 1).expand(-1, num_queries, 1)
        weights = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    return (weights @ v).transpose(0, 1).to(query.dtype)
