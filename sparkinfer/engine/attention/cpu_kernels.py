"""Paged attention for CPUs, compiled by numba for the machine it runs on; no instruction set is assumed.

One kernel serves prefill and decode. A piece of work is (key/value head, tile): a tile is up to ``TILE`` consecutive queries
of one sequence, and its rows are those queries times the grouped heads that share the key/value head, so that each K and V
is read once for all of them. Work runs head by head: a prefix that many sequences share then stays in the cache between them.
Keys lie transposed in their block, so that one vector holds one element of 16 of them.
Scores are made for ``CHUNK`` tokens at a time, then softmax is carried on (running maximum and sum), then values are added.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from sparkinfer.engine import simd
from sparkinfer.engine.simd import LANES

TILE = 16
CHUNK = 128
#: Rows whose scores are made together: each key and value is loaded from the second cache once for all of them.
ROWS = 12

# Reassociation lets sums be vectorised; NaN and infinity keep their meaning (masks, and detection of broken logits).
_FAST = {"reassoc", "contract", "arcp", "nsz"}
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_NEG = np.float32(-np.inf)


@njit(cache=True, fastmath=_FAST)
def store_rows(slots, key, value, keys, values, first, last):  # type: ignore[no-untyped-def]
    """Write K/V [T, kv_heads, dim] of a step's tokens from ``first`` to ``last`` into their slots: values of
    [num_blocks, kv_heads, block_size, dim], keys of [num_blocks, kv_heads, dim, block_size]."""
    block_size = values.shape[2]
    for t in range(first, last):
        block, offset = slots[t] // block_size, slots[t] % block_size
        for h in range(key.shape[1]):
            for d in range(key.shape[2]):
                keys[block, h, d, offset] = key[t, h, d]
            for d in range(value.shape[2]):
                values[block, h, offset, d] = value[t, h, d]


@njit(cache=True, fastmath=_FAST, parallel=True)
def store(slots, key, value, keys, values, pieces):  # type: ignore[no-untyped-def]
    """:func:`store_rows` for all tokens, dealt out to the threads."""
    count = slots.shape[0]
    for piece in prange(pieces):
        store_rows(slots, key, value, keys, values, count * piece // pieces, count * (piece + 1) // pieces)


# Whole arrays and indices are passed on, never slices: a slice of a shared array costs an atomic reference count.


@njit(cache=True, fastmath=_FAST)
def _score_block(scores, at, width, query, first, dim, rows, keys, key, block_size, scaling):  # type: ignore[no-untyped-def]
    """scores[at + r * width + t] = scaling * query row r . key t, for all keys of a block, up to six rows at a time."""
    lane = 0
    while lane < block_size:
        r = 0
        while r < rows:
            left = rows - r
            place = (at + r * width + lane, width, first + r * dim, dim, key + lane, block_size)
            if block_size % LANES != 0:
                simd.scores(scores, query, keys, place, dim, scaling, 1, 1)
                r += 1
            elif left == 6 or left > 8:
                simd.scores(scores, query, keys, place, dim, scaling, 6, LANES)
                r += 6
            elif left == 4 or left > 6:
                simd.scores(scores, query, keys, place, dim, scaling, 4, LANES)
                r += 4
            elif left >= 3:
                simd.scores(scores, query, keys, place, dim, scaling, 3, LANES)
                r += 3
            elif left == 2:
                simd.scores(scores, query, keys, place, dim, scaling, 2, LANES)
                r += 2
            else:
                simd.scores(scores, query, keys, place, dim, scaling, 1, LANES)
                r += 1
        lane += LANES if block_size % LANES == 0 else 1


@njit(cache=True, fastmath=_FAST)
def _add_block(acc, first, rows, weights, at, width, values, value, count):  # type: ignore[no-untyped-def]
    """acc[first + r] += weights[at + r * width : + count] @ the block's values from ``value`` on, up to six rows at a time."""
    dim = acc.shape[1]
    lane = 0
    while lane < dim:
        is_wide = dim - lane >= LANES
        r = 0
        while r < rows:
            left = rows - r
            place = ((first + r) * dim + lane, dim, at + r * width, width, value + lane, dim)
            if not is_wide:
                simd.add_values(acc, weights, values, place, count, 1, 1)
                r += 1
            elif left == 6 or left > 8:
                simd.add_values(acc, weights, values, place, count, 6, LANES)
                r += 6
            elif left == 4 or left > 6:
                simd.add_values(acc, weights, values, place, count, 4, LANES)
                r += 4
            elif left >= 3:
                simd.add_values(acc, weights, values, place, count, 3, LANES)
                r += 3
            elif left == 2:
                simd.add_values(acc, weights, values, place, count, 2, LANES)
                r += 2
            else:
                simd.add_values(acc, weights, values, place, count, 1, LANES)
                r += 1
        lane += LANES if is_wide else 1


@njit(cache=True, fastmath=_FAST)
def _carry_on(scores, first, last, lo, hi, softcap, top, total, acc, r):  # type: ignore[no-untyped-def]
    """One chunk's scores become weights under the running maximum; what was summed before is scaled to it.

    Scores from ``lo`` to ``hi`` count, at least one; those around them, from ``first`` to ``last``, fill whole vectors and weigh nothing.
    """
    for i in range(first, lo):
        scores[i] = _NEG
    for i in range(hi, last):
        scores[i] = _NEG
    if softcap > _ZERO:
        for i in range(lo, hi):
            scores[i] = softcap * np.float32(np.tanh(scores[i] / softcap))
    is_wide = (last - first) % LANES == 0
    best = simd.largest(scores, first, last - first, LANES) if is_wide else simd.largest(scores, first, last - first, 1)
    if best > top:
        scale = np.float32(np.exp(top - best))
        total *= scale
        for d in range(acc.shape[1]):
            acc[r, d] *= scale
        top = best
    if is_wide:
        total += simd.exponentials(scores, first, last - first, top, LANES)
    else:
        total += simd.exponentials(scores, first, last - first, top, 1)
    for i in range(first, lo):
        scores[i] = _ZERO
    for i in range(hi, last):
        scores[i] = _ZERO
    return top, total


@njit(cache=True, fastmath=_FAST)
def _attend_queries(  # type: ignore[no-untyped-def]
    query,
    groups,
    position,
    count,
    tables,
    sequence,
    head,
    chunk,
    keys,
    values,
    scaling,
    window,
    softcap,
    scores,
    width,
    acc,
    row,
    tops,
    totals,
):
    """Carry some queries' grouped heads (rows from ``row`` on, the first query at ``position``) over one chunk of their context."""
    kv_heads, dim, block_size = keys.shape[1], keys.shape[2], keys.shape[3]
    v_dim = values.shape[3]
    begin = max(chunk, position + 1 - window)
    end = min(chunk + width, position + count)
    if begin >= end:
        return
    first_block, last_block = begin // block_size, (end - 1) // block_size
    rows = count * groups
    for b in range(first_block, last_block + 1):
        key = (tables[sequence, b] * kv_heads + head) * dim * block_size
        if row == 0 and b < last_block:  # the tile's later queries find them where the first ones brought them
            simd.prefetch(keys, (tables[sequence, b + 1] * kv_heads + head) * dim * block_size, dim * block_size)
        elif row == 0:
            simd.prefetch(
                values, (tables[sequence, first_block] * kv_heads + head) * block_size * v_dim, block_size * v_dim
            )
        _score_block(scores, b * block_size - chunk, width, query, row * dim, dim, rows, keys, key, block_size, scaling)
    for r in range(rows):
        at = r * width - chunk
        around = at + first_block * block_size, at + (last_block + 1) * block_size
        own = position + r // groups
        lo, hi = max(begin, own + 1 - window), min(end, own + 1)
        if lo < hi:
            tops[row + r], totals[row + r] = _carry_on(
                scores, around[0], around[1], at + lo, at + hi, softcap, tops[row + r], totals[row + r], acc, row + r
            )
        else:  # the chunk is another query's
            scores[around[0] : around[1]] = _ZERO
    for b in range(first_block, last_block + 1):
        if row == 0 and b < last_block:
            simd.prefetch(values, (tables[sequence, b + 1] * kv_heads + head) * block_size * v_dim, block_size * v_dim)
        lo, hi = max(begin, b * block_size), min(end, (b + 1) * block_size)
        value = ((tables[sequence, b] * kv_heads + head) * block_size + lo - b * block_size) * v_dim
        _add_block(acc, row, rows, scores, lo - chunk, width, values, value, hi - lo)


@njit(cache=True, fastmath=_FAST)
def _begin(query, token, first_head, groups, rows, sinks, mine, acc, tops, totals):  # type: ignore[no-untyped-def]
    """A tile's rows one behind the other, and nothing summed yet but the sinks."""
    for r in range(rows):
        head = first_head + r % groups
        tops[r], totals[r] = _NEG, _ZERO
        if sinks.shape[0] > 0:
            tops[r], totals[r] = sinks[head], _ONE
        for d in range(acc.shape[1]):
            acc[r, d] = _ZERO
        for d in range(mine.shape[1]):
            mine[r, d] = query[token + r // groups, head, d]


@njit(cache=True, fastmath=_FAST, parallel=True)
def attend(query, out, keys, values, tiles, tables, sinks, scaling, window, softcap, num_threads):  # type: ignore[no-untyped-def]
    """out[T, heads, v_dim] = attention of query[T, heads, k_dim] over the pool.

    tiles: int64 [n, 4] of (sequence, first token in the batch, its position, number of queries). Work is dealt out to the
    threads in turn, so that long and short pieces mix. window and softcap are 0 where there is none; sinks is empty or [heads].
    """
    kv_heads, block_size = keys.shape[1], keys.shape[3]
    heads, dim = query.shape[1], query.shape[2]
    groups = heads // kv_heads
    v_dim = values.shape[3]
    num_tiles = tiles.shape[0]
    width = max(CHUNK // block_size, 1) * block_size
    span = min(max(ROWS // groups, 1), TILE)
    for thread in prange(num_threads):
        scores = np.empty(span * groups * width, np.float32)
        mine = np.empty((TILE * groups, dim), np.float32)
        acc = np.empty((TILE * groups, v_dim), np.float32)
        tops = np.empty(TILE * groups, np.float32)
        totals = np.empty(TILE * groups, np.float32)
        for work in range(thread, num_tiles * kv_heads, num_threads):
            head, tile = work // num_tiles, work % num_tiles
            sequence, token, position, count = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2], tiles[tile, 3]
            rows = count * groups
            _begin(query, token, head * groups, groups, rows, sinks, mine, acc, tops, totals)
            seen = window if window > 0 else position + count
            begin = max(0, position + 1 - seen) // width * width
            for chunk in range(begin, position + count, width):
                for i in range(0, count, span):
                    _attend_queries(
                        mine, groups, position + i, min(span, count - i), tables, sequence, head, chunk,
                        keys, values, scaling, seen, softcap, scores, width, acc, i * groups, tops, totals,
                    )  # fmt: skip
            for r in range(rows):
                inverse = _ONE / totals[r]
                for d in range(v_dim):
                    out[token + r // groups, head * groups + r % groups, d] = acc[r, d] * inverse
