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

from sparkinfer.engine.attention.base import (
    Attention,
    AttentionCall,
    DecodeTables,
    LayerShape,
    PackedBatch,
    pack,
    slots_of,
)
from sparkinfer.engine.attention.reference import ReferenceAttention
from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.kv import KvPool
from sparkinfer.engine.plan import PlannedSequence
from sparkinfer.engine.sequence import Sequence
from sparkinfer.errors import UnsupportedModel
from sparkinfer.types import SamplingParams

try:
    _torch: Any = import_module("torch.nn.attention.varlen")
except ImportError:  # torch before 2.10
    _torch = None
varlen_attn: Any = getattr(_torch, "varlen_attn", None)

_LOG = logging.getLogger(__name__)
_TOLERANCE = 0.03  # bf16 against float32
_TRIAL_TOKENS = 3


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
        self._is_recorded = False

    @property
    def is_recordable(self) -> bool:
        """Whether decode steps can be recorded: with gathered keys their number is part of the work."""
        return self._paged

    def begin(self, batch: PackedBatch) -> None:
        """Bring the step's tables to the device, once for all layers."""
        self._is_recorded = False
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

    def begin_recorded(self, tables: DecodeTables) -> None:
        """Read the step from these tensors, see :mod:`sparkinfer.engine.graphs`."""
        self._is_recorded = True
        self._slots = tables.slots
        self._step = {
            "cu_seq_q": tables.query_starts,
            "cu_seq_k": None,
            "max_q": 1,
            "max_k": tables.longest,
            "seqused_k": tables.context_lens,
            "block_table": tables.blocks,
        }

    def forward(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """Store, then attend."""
        if call.softcap is not None or key.shape[-1] != value.shape[-1]:
            if self._is_recorded:
                raise UnsupportedModel("A layer needs the reference kernel, whose steps cannot be recorded.")
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
            off = _difference(pool, paged=paged)
        except Exception as error:  # a card, build or shape without this kernel says so in many ways
            _LOG.info(
                "attention by varlen_attn, paged=%s, is not to be had here: %s", paged, str(error).splitlines()[:1]
            )
            continue
        if off <= _TOLERANCE:
            return VarlenAttention(pool, paged=paged)
        _LOG.warning("attention by varlen_attn, paged=%s, differs by %.2g and is not used.", paged, off)
    return ReferenceAttention(pool)


def context_slots(batch: PackedBatch, block_size: int) -> np.ndarray:
    """int64 [sum of context_lens]: where each token of each sequence's context lies, one sequence after the other."""
    owner = np.repeat(np.arange(len(batch.context_lens)), batch.context_lens)
    starts = np.cumsum(batch.context_lens) - batch.context_lens
    positions = np.arange(len(owner)) - starts[owner]
    return slots_of(batch.tables, owner, positions, block_size)


def _difference(pool: KvPool, *, paged: bool) -> float:
    """The largest difference from the reference kernel on two short sequences, in a small pool like this one."""
    shapes = {(k.shape[1], k.shape[3], v.shape[3]) for k, v in zip(pool.keys, pool.values, strict=True)}
    layers = [LayerShape(kv_heads=heads, k_dim=k_dim, v_dim=v_dim) for heads, k_dim, v_dim in sorted(shapes)]
    device, dtype = pool.keys[0].device, pool.keys[0].dtype
    batch = _two_sequences(pool.block_size)
    kernels: list[Attention] = []
    for make in (ReferenceAttention, lambda small: VarlenAttention(small, paged=paged)):
        small = KvPool(layers, num_blocks=_TRIAL_TOKENS, block_size=pool.block_size, dtype=dtype, device=device)
        kernels.append(make(small))
        kernels[-1].begin(batch)
    differences = []
    for layer, shape in enumerate(layers):
        generator = torch.Generator().manual_seed(layer)
        query, key, value = (
            torch.randn((_TRIAL_TOKENS, shape.kv_heads, dim), generator=generator).to(device, dtype)
            for dim in (shape.k_dim, shape.k_dim, shape.v_dim)
        )
        call = AttentionCall(scaling=shape.k_dim**-0.5)
        want, got = (kernel.forward(layer, query, key, value, call).float() for kernel in kernels)
        differences.append((want - got).abs().max())
    return float(torch.stack(differences).max())  # of torch, which keeps NaN


def _two_sequences(block_size: int) -> PackedBatch:
    """Prompts of two tokens and of one."""
    items, block = [], 0
    for number, count in enumerate((2, 1)):
        request = EngineRequest(request_id=number, prompt_ids=[0] * count, sampling=SamplingParams())
        sequence = Sequence.from_request(request)
        sequence.block_ids = list(range(block, block + -(-count // block_size)))
        block += len(sequence.block_ids)
        items.append(PlannedSequence(sequence, 0, count, True))
    return pack(items, block_size)


def _tokens_first(blocks: torch.Tensor) -> torch.Tensor:
    count, heads, size, dim = blocks.shape
    return blocks.view(count, size, heads, dim)


def _on(device: torch.device, array: np.ndarray) -> torch.Tensor:
    """The copy goes on while the host prepares the next one."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
