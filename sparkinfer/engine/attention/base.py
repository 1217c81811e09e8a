"""What an attention kernel is asked: one packed batch, layer by layer, over a pool of KV blocks.

    BLOCK   ``block_size`` tokens of one sequence in one layer: K ``[kv_heads, block_size, k_dim]``, V likewise with ``v_dim``
            (a kernel may keep a block's elements in another order; then only it reads them)
    POOL    all blocks of one layer: K ``[num_blocks, kv_heads, block_size, k_dim]``
    SLOT    the place of one token: ``block_id * block_size + offset``
    TABLE   per sequence the ids of its blocks; position ``p`` stands in ``table[p // block_size]``

A kernel knows no models, prompts or requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from sparkinfer.engine.plan import PlannedSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What one attention layer keeps per token, learnt from the model's own forward."""

    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One layer's arguments besides the tensors.

    Attributes:
        scaling: factor of the scores.
        window: a query sees this many last positions, itself included; None: all.
        softcap: scores become ``softcap * tanh(score / softcap)``; None: as they are.
        sinks: one extra score a head ``[heads]`` that takes weight and gives no value (gpt_oss), or None.
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """One step's tokens, packed one sequence after the other (S sequences, T tokens).

    Attributes:
        token_ids: int64 ``[T]``.
        positions: int64 ``[T]``.
        slots: int64 ``[T]``, where each token's K and V go.
        query_starts: int64 ``[S + 1]``, first token of each sequence.
        context_lens: int64 ``[S]``, tokens of each sequence after this step.
        tables: int64 ``[S, widest]``, block ids; what lies beyond a sequence's own blocks is never read.
        sample_rows: int64, the tokens whose logits are wanted.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    query_starts: np.ndarray
    context_lens: np.ndarray
    tables: np.ndarray
    sample_rows: np.ndarray

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTables:
    """A decode step's tables on the device, for a step that is recorded: replays read what stands in them then.

    Attributes:
        slots: int64 ``[T]``.
        query_starts: int32 ``[T + 1]``: one token a sequence.
        context_lens: int32 ``[T]``.
        blocks: int32 ``[T, widest]``.
        longest: no context is longer.
    """

    slots: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    blocks: torch.Tensor
    longest: int


class Attention(Protocol):
    """One kernel bound to one pool. ``begin`` once a step, then ``forward`` once a layer."""

    name: str

    def begin(self, batch: PackedBatch) -> None:
        """Prepare what is the same for all layers of the step."""

    def forward(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """Store the step's K and V in their slots, then attend.

        Args:
            layer: index of the layer's pool.
            query: ``[T, heads, k_dim]``.
            key: ``[T, kv_heads, k_dim]``.
            value: ``[T, kv_heads, v_dim]``.
            call: the layer's other arguments.

        Returns:
            ``[T, heads, v_dim]`` in the query's dtype.
        """


def pack(items: list[PlannedSequence], block_size: int) -> PackedBatch:
    """The step's plan as index arrays: a few array operations a sequence, none a token. Guesses are rows to sample too."""
    lengths = np.fromiter((item.num_tokens + len(item.draft) for item in items), np.int64, len(items))
    starts = np.zeros(len(items) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    firsts = np.fromiter((item.start for item in items), np.int64, len(items))
    owner = np.repeat(np.arange(len(items)), lengths)
    positions = np.arange(starts[-1]) - starts[owner] + firsts[owner]
    token_ids: list[int] = []
    for item in items:
        token_ids += item.sequence.token_ids[item.start : item.start + item.num_tokens]
        token_ids += item.draft
    tables = np.zeros((len(items), max(len(item.sequence.block_ids) for item in items)), np.int64)
    for row, item in zip(tables, items, strict=True):
        row[: len(item.sequence.block_ids)] = item.sequence.block_ids
    sampled = np.fromiter((item.samples * (1 + len(item.draft)) for item in items), np.int64, len(items))
    return PackedBatch(
        token_ids=np.array(token_ids, np.int64),
        positions=positions,
        slots=slots_of(tables, owner, positions, block_size),
        query_starts=starts,
        context_lens=firsts + lengths,
        tables=tables,
        sample_rows=np.flatnonzero(starts[1:][owner] - np.arange(starts[-1]) <= sampled[owner]),
    )


def slots_of(tables: np.ndarray, owner: np.ndarray, positions: np.ndarray, block_size: int) -> np.ndarray:
    """int64 ``[n]``: where tokens lie, by the row of their sequence in ``tables`` and their position in it."""
    slots: np.ndarray = tables[owner, positions // block_size] * block_size + positions % block_size
    return slots


def slices(batch: PackedBatch, size: int, *, padding_block: int, block_size: int) -> Iterator[PackedBatch]:
    """The batch in pieces of exactly ``size`` tokens, in order; the last is filled up with one-token sequences.

    A piece may cut a sequence: the earlier piece has stored what the later one attends to.

    Args:
        batch: what to cut.
        size: tokens of each piece.
        padding_block: a block that no sequence owns.
        block_size: tokens of a block.
    """
    owner = np.repeat(np.arange(len(batch.context_lens)), np.diff(batch.query_starts))
    for first in range(0, batch.num_tokens, size):
        part = slice(first, min(first + size, batch.num_tokens))
        count = part.stop - first
        sequences, starts = np.unique(owner[part], return_index=True)
        starts = np.append(starts, count)
        in_part = (batch.sample_rows >= first) & (batch.sample_rows < part.stop)
        cut = PackedBatch(
            token_ids=batch.token_ids[part],
            positions=batch.positions[part],
            slots=batch.slots[part],
            query_starts=starts,
            context_lens=batch.positions[part][starts[1:] - 1] + 1,
            tables=batch.tables[sequences],
            sample_rows=batch.sample_rows[in_part] - first,
        )
        yield filled_up(cut, size, padding_block=padding_block, block_size=block_size)


def filled_up(batch: PackedBatch, size: int, *, padding_block: int, block_size: int) -> PackedBatch:
    """The batch with sequences of one token behind it, so many that it has ``size`` tokens; nobody samples from them.

    Args:
        batch: of ``size`` tokens at most.
        size: T of the result.
        padding_block: a block that no sequence owns.
        block_size: tokens of a block.
    """
    missing = size - batch.num_tokens
    if not missing:
        return batch
    noughts = np.zeros(missing, np.int64)
    tables = np.zeros((missing, batch.tables.shape[1]), np.int64)
    tables[:, 0] = padding_block
    return replace(
        batch,
        token_ids=np.append(batch.token_ids, noughts),
        positions=np.append(batch.positions, noughts),
        slots=np.append(batch.slots, noughts + padding_block * block_size),
        query_starts=np.append(batch.query_starts, np.arange(batch.num_tokens + 1, size + 1)),
        context_lens=np.append(batch.context_lens, noughts + 1),
        tables=np.concatenate([batch.tables, tables]),
    )
