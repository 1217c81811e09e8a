"""Paged attention on a GPU by torch's ``varlen_attn`` (FlashAttention, Dao et al. 2022 to 2024, or cuDNN behind it).

Where the card's kernel reads block tables it gets them; where it does not (pages of 16 tokens are too small for some), a step's keys and
values are gathered first. A layer with a feature that it lacks (softcap of gemma2, values of another width) is answered by the
reference kernel; the extra score of gpt_oss's sinks is put in afterwards, from the log-sum-exp that comes with the answer.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

import numpy as np
import torch

from sparkinfer.engine.attention.base import Attention, AttentionCall, PackedBatch
from sparkinfer.engine.attention.reference import ReferenceAttention
from sparkinfer.engine.kv import KvPool

try:
    _torch: Any = import_module("torch.nn.attention.varlen")
except ImportError:  # torch before 2.10
    _torch = None
varlen_attn: Any = getattr(_torch, "varlen_attn", None)

_LOG = logging.getLogger(__name__)
_TOLERANCE = 0.03  # bf16 against float32


class VarlenAttention:
    """Implements :class:`sparkinfer.engine.attention.base.Attention`.

    A block keeps its tokens first, ``[block_size, kv_heads, dim]``, which is what the kernel reads.

    Args:
        pool: half precision, on a GPU.
        paged: whether the kernel takes block tables.
    """

    def __init__(self, pool: KvPool, *, paged: bool) -> None:
        self.name = "varlen" if paged else "varlen-gathered"
        self._paged = paged
        self._pool = pool
        self._keys = [_tokens_first(blocks) for blocks in pool.keys]
        self._values = [_tokens_first(blocks) for blocks in pool.values]
        self._reference = ReferenceAttention(pool)
        self._step: dict[str, Any] = {}
        self._slots = self._context_slots = torch.empty(0)

    def begin(self, batch: PackedBatch) -> None:
        """Bring the step's tables to the device, once for all layers."""
        self._reference.begin(batch)
        device = self._pool.keys[0].device
        self._slots = _on(device, batch.slots)
        self._step = {
            "cu_seq_q": _on(device, batch.query_starts.astype(np.int32)),
            "max_q": int(np.diff(batch.query_starts).max()),
            "max_k": int(batch.context_lens.max()),
        }
        if self._paged:
            used = _on(device, batch.context_lens.astype(np.int32))
            self._step |= {
                "cu_seq_k": None,
                "seqused_k": used,
                "block_table": _on(device, batch.tables.astype(np.int32)),
            }
        else:
            starts = np.concatenate([[0], np.cumsum(batch.context_lens)])
            self._context_slots = _on(device, context_slots(batch, self._pool.block_size))
            self._step |= {"cu_seq_k": _on(device, starts.astype(np.int32))}

    def forward(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """Store, then attend."""
        if call.softcap is not None or key.shape[-1] != value.shape[-1]:
            return self._reference.forward(layer, query, key, value, call)
        keys, values = self._keys[layer], self._values[layer]
        keys.flatten(0, 1).index_copy_(0, self._slots, key.to(keys.dtype))
        values.flatten(0, 1).index_copy_(0, self._slots, value.to(values.dtype))
        if not self._paged:
            keys, values = (blocks.flatten(0, 1).index_select(0, self._context_slots) for blocks in (keys, values))
        answer = varlen_attn(
            query.to(keys.dtype),
            keys,
            values,
            **self._step,
            scale=call.scaling,
            window_size=(-1 if call.window is None else call.window - 1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
            return_aux=None if call.sinks is None else _torch.AuxRequest(lse=True),
        )
        if call.sinks is None:
            plain: torch.Tensor = answer.to(query.dtype)
            return plain
        out, log_sum = answer  # log_sum [heads, T]: of the scores without the sink
        kept = torch.sigmoid(log_sum - call.sinks.float()[:, None]).t()[..., None]
        with_sinks: torch.Tensor = (out * kept).to(query.dtype)
        return with_sinks


def best_attention(pool: KvPool) -> Attention:
    """The fastest kernel for a pool on a GPU that gives what the reference kernel gives on a small batch of this pool's shapes."""
    for paged in (True, False):
        try:
            attention = VarlenAttention(pool, paged=paged)
            off = _difference(attention, pool)
        except Exception as error:  # a card, build or shape without this kernel says so in many ways
            _LOG.info(
                "attention by varlen_attn, paged=%s, is not to be had here: %s", paged, str(error).splitlines()[:1]
            )
            continue
        if off <= _TOLERANCE:
            return attention
        _LOG.warning("attention by varlen_attn, paged=%s, differs by %.2g and is not used.", paged, off)
    return ReferenceAttention(pool)


def context_slots(batch: PackedBatch, block_size: int) -> np.ndarray:
    """int64 [sum of context_lens]: where each token of each sequence's context lies, one sequence after the other."""
    owner = np.repeat(np.arange(len(batch.context_lens)), batch.context_lens)
    starts = np.cumsum(batch.context_lens) - batch.context_lens
    positions = np.arange(len(owner)) - starts[owner]
    found: np.ndarray = batch.tables[owner, positions // block_size] * block_size + positions % block_size
    return found


def _difference(attention: VarlenAttention, pool: KvPool) -> float:
    """The largest difference from the reference kernel on two short sequences, one in a chunk and one decoding; blocks are left zero."""
    batch = PackedBatch(
        token_ids=np.zeros(3, np.int64),
        positions=np.array([0, 1, 0]),
        slots=np.array([0, 1, pool.block_size]) if pool.num_blocks > 1 and pool.block_size > 1 else np.arange(3),
        query_starts=np.array([0, 2, 3]),
        context_lens=np.array([2, 1]),
        tables=np.array([[0], [1]]),
        sample_rows=np.array([1, 2]),
    )
    largest = 0.0
    reference = ReferenceAttention(pool)
    for layer, (keys, values) in enumerate(zip(pool.keys, pool.values, strict=True)):
        generator = torch.Generator().manual_seed(layer)
        query, key, value = (
            torch.randn((3, keys.shape[1], dim), generator=generator).to(keys.device, keys.dtype)
            for dim in (keys.shape[3], keys.shape[3], values.shape[3])
        )
        answers = []
        for kernel in (reference, attention):
            kernel.begin(batch)
            answers.append(
                kernel.forward(layer, query, key, value, AttentionCall(scaling=keys.shape[3] ** -0.5)).float()
            )
            keys.zero_()
            values.zero_()
        largest = max(largest, float((answers[0] - answers[1]).abs().max()))
    return largest


def _tokens_first(blocks: torch.Tensor) -> torch.Tensor:
    count, heads, size, dim = blocks.shape
    return blocks.view(count, size, heads, dim)


def _on(device: torch.device, array: np.ndarray) -> torch.Tensor:
    """The copy goes on while the host prepares the next one."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
