"""The CPU kernel behind the attention protocol: float32 pool, numba code, threads shared with torch."""

from __future__ import annotations

import numpy as np
import torch

from sparkinfer.engine.attention.base import AttentionCall, PackedBatch
from sparkinfer.engine.kernel_cache import use_kernel_cache
from sparkinfer.engine.kv import KvPool
from sparkinfer.engine.replays import run_kernel

_NO_SINKS = np.empty(0, np.float32)
_STORED_BY_ONE = 128  # tokens below which waking another thread costs more than it helps


class CpuAttention:
    """Implements :class:`sparkinfer.engine.attention.base.Attention`.

    K and V are kept and multiplied in float32 whatever the model's dtype: machines without bf16 or fp16 units are slow at those.

    Args:
        pool: float32 on the CPU.
        threads: how many threads a call uses.
    """

    name = "numba"

    def __init__(self, pool: KvPool, *, threads: int) -> None:
        use_kernel_cache()
        import numba

        from sparkinfer.engine.attention import cpu_kernels

        self._kernels = cpu_kernels
        self._threads = max(1, min(threads, numba.config.NUMBA_NUM_THREADS))
        self._set_threads = numba.set_num_threads
        # The pool's memory as the kernel has it: [num_blocks, kv_heads, k_dim, block_size].
        self._keys = [_turned(t) for t in pool.keys]
        self._values = [t.numpy() for t in pool.values]
        self._slots = self._tables = np.empty(0, np.int64)
        self._tiles = np.empty((0, 4), np.int64)

    def begin(self, batch: PackedBatch) -> None:
        """Cut the batch into tiles."""
        self._set_threads(self._threads)  # numba keeps it per calling thread
        self._slots, self._tables = batch.slots, batch.tables
        self._tiles = tiles(batch, self._kernels.TILE)

    def forward(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """Store, then attend; both in compiled code."""
        out = torch.empty((query.shape[0], query.shape[1], value.shape[-1]), dtype=torch.float32)
        sinks = _NO_SINKS if call.sinks is None else _array(call.sinks)
        run_kernel(self._attend, layer, _array(query), _array(key), _array(value), out.numpy(), sinks, call)
        return out.to(query.dtype)

    def _attend(
        self,
        layer: int,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        out: np.ndarray,
        sinks: np.ndarray,
        call: AttentionCall,
    ) -> None:
        keys, values = self._keys[layer], self._values[layer]
        count = len(self._slots)
        if count < _STORED_BY_ONE:
            self._kernels.store_rows(self._slots, key, value, keys, values, 0, count)
        else:
            self._kernels.store(self._slots, key, value, keys, values, self._threads)
        self._kernels.attend(
            query,
            out,
            keys,
            values,
            self._tiles,
            self._tables,
            sinks,
            np.float32(call.scaling),
            call.window or 0,
            np.float32(call.softcap or 0.0),
            self._threads,
        )


def tiles(batch: PackedBatch, size: int) -> np.ndarray:
    """int64 [n, 4]: (sequence, first token in the batch, its position, number of queries), at most ``size`` queries each."""
    lengths = np.diff(batch.query_starts)
    per_sequence = -(-lengths // size)
    owner = np.repeat(np.arange(len(lengths)), per_sequence)
    within = np.arange(len(owner)) - (np.cumsum(per_sequence) - per_sequence)[owner]
    first = batch.query_starts[owner] + within * size
    count = np.minimum(size, batch.query_starts[owner + 1] - first)
    position = batch.context_lens[owner] - lengths[owner] + within * size
    return np.stack([owner, first, position, count], axis=1)


def _turned(keys: torch.Tensor) -> np.ndarray:
    blocks, heads, block_size, dim = keys.shape
    turned: np.ndarray = keys.numpy().reshape(blocks, heads, dim, block_size)
    return turned


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to(torch.float32).contiguous().numpy()
