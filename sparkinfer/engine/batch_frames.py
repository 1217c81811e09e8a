"""A packed batch as bytes, as a leader sends it to its followers: integers of eight bytes behind each other, their numbers first."""

from __future__ import annotations

from typing import IO

import numpy as np

from sparkinfer.engine.attention.base import PackedBatch

_NUM_SIZES = 4


def to_bytes(batch: PackedBatch) -> bytes:
    """A batch as integers behind each other, their numbers first."""
    sizes = (len(batch.context_lens), batch.tables.shape[1], batch.num_tokens, len(batch.sample_rows))
    arrays = (
        np.array(sizes),
        batch.token_ids,
        batch.positions,
        batch.slots,
        batch.query_starts,
        batch.context_lens,
        batch.tables,
        batch.sample_rows,
    )
    return b"".join(np.ascontiguousarray(array, np.int64).tobytes() for array in arrays)


def read_batch(stream: IO[bytes]) -> PackedBatch | None:
    """The next batch that was written by :func:`to_bytes`; None at the end."""
    head = stream.read(_NUM_SIZES * 8)
    if len(head) < _NUM_SIZES * 8:
        return None
    sequences, width, tokens, sampled = (int(size) for size in np.frombuffer(head, np.int64))
    counts = (tokens, tokens, tokens, sequences + 1, sequences, sequences * width, sampled)
    body = stream.read(8 * sum(counts))
    if len(body) < 8 * sum(counts):
        return None
    ids, positions, slots, starts, lengths, tables, rows = np.split(
        np.frombuffer(body, np.int64), np.cumsum(counts)[:-1]
    )
    return PackedBatch(
        token_ids=ids,
        positions=positions,
        slots=slots,
        query_starts=starts,
        context_lens=lengths,
        tables=tables.reshape(sequences, width),
        sample_rows=rows,
    )
