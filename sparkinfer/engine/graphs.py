"""Decode steps recorded once and replayed (CUDA graphs): a small model's hundreds of kernels then cost the host one call.

A recording works on tensors of its own, for a bucket of rows and of block-table width. A step goes into the smallest bucket that
holds it, filled up with rows of one token in a block that no sequence owns; so a few recordings serve every batch.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from sparkinfer.engine.attention.base import DecodeTables, PackedBatch

_LOG = logging.getLogger(__name__)
#: Rows that recordings are made for: the next larger one is at most a half more.
ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_NARROWEST = 8

Replay = Callable[[], None]
Recorder = Callable[[Callable[[], torch.Tensor]], tuple[Replay, torch.Tensor]]
"""Takes a forward and gives what runs it again, and the tensor that its logits are in after each run."""
Bucket = tuple[int, int]
"""Rows, and blocks of the widest of them."""


@runtime_checkable
class Recordable(Protocol):
    """An attention kernel whose work depends on the contents of tensors only, not on numbers that the host holds."""

    def begin_recorded(self, tables: DecodeTables) -> None:
        """Read this step, and every replay of it, from these tensors."""


@dataclass(frozen=True, slots=True)
class _Recording:
    ids: torch.Tensor
    positions: torch.Tensor
    tables: DecodeTables
    replay: Replay
    logits: torch.Tensor


class DecodeGraphs:
    """Runs decode steps from recordings, each made when its bucket is first met.

    Args:
        forward: ``(ids [1, T], positions [1, T], rows [T]) -> logits [T, vocabulary]``, with ``attention`` behind it.
        attention: where the tables of a recording are set.
        recorder: how a forward is recorded on this device.
        device: of all tensors.
        padding_block: a block that no sequence owns.
        block_size: tokens of a block.
    """

    def __init__(
        self,
        forward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
        attention: Recordable,
        recorder: Recorder,
        *,
        device: torch.device,
        padding_block: int,
        block_size: int,
    ) -> None:
        self._forward = forward
        self._attention = attention
        self._recorder = recorder
        self._device = device
        self._padding_block = padding_block
        self._block_size = block_size
        self._recordings: dict[Bucket, _Recording] = {}
        self.works = True  # until one step cannot be recorded

    def run(self, batch: PackedBatch) -> torch.Tensor | None:
        """The logits ``[S, vocabulary]`` of a decode step, its K/V stored; None for a step that has to be run as it is."""
        bucket = bucket_of(batch)
        if bucket is None or not self.works:
            return None
        if bucket not in self._recordings:
            try:
                self._recordings[bucket] = self._record(batch, bucket)
            except Exception as error:  # models whose forward asks the device in between, kernels without this form
                self.works = False
                _LOG.warning("Decode steps are not recorded: %s.", (str(error).splitlines() or [repr(error)])[0])
                return None
        recording = self._recordings[bucket]
        self._fill(recording.ids, recording.positions, recording.tables, batch)
        recording.replay()
        return recording.logits[: len(batch.context_lens)].clone()  # the next replay writes there again

    def _record(self, batch: PackedBatch, bucket: Bucket) -> _Recording:
        count, width = bucket
        ids, positions, rows = (torch.arange(count, device=self._device) for _ in range(3))
        tables = DecodeTables(
            slots=torch.zeros(count, dtype=torch.int64, device=self._device),
            query_starts=torch.arange(count + 1, dtype=torch.int32, device=self._device),
            context_lens=torch.ones(count, dtype=torch.int32, device=self._device),
            blocks=torch.zeros((count, width), dtype=torch.int32, device=self._device),
            longest=width * self._block_size,
        )
        self._fill(ids, positions, tables, batch)

        def forward() -> torch.Tensor:
            self._attention.begin_recorded(tables)
            return self._forward(ids[None], positions[None], rows)

        replay, logits = self._recorder(forward)
        return _Recording(ids, positions, tables, replay, logits)

    def _fill(self, ids: torch.Tensor, positions: torch.Tensor, tables: DecodeTables, batch: PackedBatch) -> None:
        """Copy a step into a recording's tensors, the rows behind it as padding."""
        count, width = tables.blocks.shape
        used, columns = batch.tables.shape
        blocks = np.zeros((count, width), np.int32)
        blocks[:used, :columns] = batch.tables
        blocks[used:, 0] = self._padding_block
        for target, values, padding in (
            (ids, batch.token_ids, 0),
            (positions, batch.positions, 0),
            (tables.slots, batch.slots, self._padding_block * self._block_size),
            (tables.context_lens, batch.context_lens, 1),
        ):
            filled = np.full(count, padding, np.int64)
            filled[:used] = values
            _copy(filled, target)
        _copy(blocks, tables.blocks)


def bucket_of(batch: PackedBatch) -> Bucket | None:
    """The smallest bucket that holds a step; None where a sequence runs more than its one next token, or there are too many."""
    count = len(batch.context_lens)
    if not batch.num_tokens == count == len(batch.sample_rows) or count > ROWS[-1]:
        return None
    width = max(_NARROWEST, 1 << (batch.tables.shape[1] - 1).bit_length())
    return ROWS[bisect_left(ROWS, count)], width


def cuda_recorder() -> Recorder:
    """Recordings that share one pool of memory: one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()

    def record(forward: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            forward()  # what libraries set up on a first call is not part of a recording
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            logits = forward()
        return graph.replay, logits

    return record


def _copy(values: np.ndarray, target: torch.Tensor) -> None:
    source = torch.from_numpy(values)
    if target.is_cuda:
        source = source.pin_memory()
    target.copy_(source, non_blocking=True)
