"""Paged attention for CPUs, compiled by numba for the machine it runs on; no instruction set is assumed.

One kernel serves prefill and decode. A piece of work is (key/value head, tile): a tile is up to ``TILE`` consecutive queries
of one sequence, and its rows are those queries times the grouped heads that share the key/value head, so that each K and V
is read once for all of them. Work runs head by head: a prefix that many sequences share then stays in the cache between them.
Scores are made for ``CHUNK`` tokens at a time, then softmax is carried on (running maximum and sum), then values are added.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

TILE = 16
CHUNK = 128

# Reassociation lets sums be vectorised; NaN and infinity keep their meaning (masks, and detection of broken logits).
_FAST = {"reassoc", "contract", "arcp", "nsz"}
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_NEG = np.float32(-np.inf)


@njit(cache=True, fastmath=_FAST, parallel=True)
def store(slots, key, value, keys, values):  # type: ignore[no-untyped-def]
    """Write K/V [T, kv_heads, dim] of a step into their slots of [num_blocks, kv_heads, block_size, dim]."""
    block_size = keys.shape[2]
    for t in prange(slots.shape[0]):
        block, offset = slots[t] // block_size, slots[t] % block_size
        for h in range(key.shape[1]):
            for d in range(key.shape[2]):
                keys[block, h, offset, d] = key[t, h, d]
            for d in range(value.shape[2]):
                values[block, h, offset, d] = value[t, h, d]


@njit(cache=True, fastmath=_FAST)
def _exp(scores, lo, hi, top):  # type: ignore[no-untyped-def]
    """scores[lo:hi] = exp(scores - top), relative error about 1e-7, in a form that vectorises; returns their sum."""
    bits = scores.view(np.int32)
    for i in range(lo, hi):
        x = scores[i] - top
        x = max(x, np.float32(-87.0)) * np.float32(1.44269504)
        n = np.floor(x + np.float32(0.5))
        f = (x - n) * np.float32(0.69314718)
        p = np.float32(1.9875691e-4)
        p = p * f + np.float32(1.3981999e-3)
        p = p * f + np.float32(8.3334519e-3)
        p = p * f + np.float32(4.1665795e-2)
        p = p * f + np.float32(1.6666665e-1)
        p = p * f + np.float32(5.0000001e-1)
        p = (p * f) * f + f + _ONE
        scores[i] = p
        bits[i] += np.int32(n) << np.int32(23)  # times 2**n: added to the exponent's bits
    total = _ZERO
    for i in range(lo, hi):
        total += scores[i]
    return total


# Whole arrays and indices are passed on, never slices: a slice of a shared array costs an atomic reference count.


@njit(cache=True, fastmath=_FAST)
def _dot_block(query, token, row, keys, block, head, count, scores, at, scaling):  # type: ignore[no-untyped-def]
    """scores[at : at + count] = scaling * keys[block, head, :count] @ query[token, row], four keys at a time."""
    dim = query.shape[2]
    t = 0
    while t + 4 <= count:
        a, b, c, e = _ZERO, _ZERO, _ZERO, _ZERO
        for d in range(dim):
            q = query[token, row, d]
            a += q * keys[block, head, t, d]
            b += q * keys[block, head, t + 1, d]
            c += q * keys[block, head, t + 2, d]
            e += q * keys[block, head, t + 3, d]
        scores[at + t], scores[at + t + 1] = a * scaling, b * scaling
        scores[at + t + 2], scores[at + t + 3] = c * scaling, e * scaling
        t += 4
    while t < count:
        a = _ZERO
        for d in range(dim):
            a += query[token, row, d] * keys[block, head, t, d]
        scores[at + t] = a * scaling
        t += 1


@njit(cache=True, fastmath=_FAST)
def _add_block(acc, r, values, block, head, weights, at, lo, hi):  # type: ignore[no-untyped-def]
    """acc[r] += weights[at + lo : at + hi] @ values[block, head, lo:hi], eight values at a time."""
    dim = acc.shape[1]
    t = lo
    while t + 8 <= hi:
        p0, p1, p2, p3 = weights[at + t], weights[at + t + 1], weights[at + t + 2], weights[at + t + 3]
        p4, p5, p6, p7 = weights[at + t + 4], weights[at + t + 5], weights[at + t + 6], weights[at + t + 7]
        for d in range(dim):
            acc[r, d] += (
                p0 * values[block, head, t, d] + p1 * values[block, head, t + 1, d]
                + p2 * values[block, head, t + 2, d] + p3 * values[block, head, t + 3, d]
                + p4 * values[block, head, t + 4, d] + p5 * values[block, head, t + 5, d]
                + p6 * values[block, head, t + 6, d] + p7 * values[block, head, t + 7, d]
            )  # fmt: skip
        t += 8
    while t < hi:
        p0 = weights[at + t]
        for d in range(dim):
            acc[r, d] += p0 * values[block, head, t, d]
        t += 1


@njit(cache=True, fastmath=_FAST)
def _carry_on(scores, lo, hi, softcap, top, total, acc, r):  # type: ignore[no-untyped-def]
    """One chunk's scores become weights under the running maximum; what was summed before is scaled to it."""
    if softcap > _ZERO:
        for i in range(lo, hi):
            scores[i] = softcap * np.float32(np.tanh(scores[i] / softcap))
    best = top
    for i in range(lo, hi):
        best = max(best, scores[i])
    if best > top:
        scale = np.float32(np.exp(top - best))
        total *= scale
        for d in range(acc.shape[1]):
            acc[r, d] *= scale
    return best, total + _exp(scores, lo, hi, best)


@njit(cache=True, fastmath=_FAST)
def _attend_row(  # type: ignore[no-untyped-def]
    query,
    token,
    row,
    position,
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
    acc,
    r,
    top,
    total,
):
    """Carry one row (a query of one head) over one chunk of its context; returns the running maximum and sum."""
    block_size = keys.shape[2]
    begin = max(chunk, position + 1 - window)
    end = min(chunk + scores.shape[0], position + 1)
    if begin >= end:
        return top, total
    for b in range(begin // block_size, (end - 1) // block_size + 1):
        at = b * block_size
        _dot_block(
            query, token, row, keys, tables[sequence, b], head, min(block_size, end - at), scores, at - chunk, scaling
        )
    top, total = _carry_on(scores, begin - chunk, end - chunk, softcap, top, total, acc, r)
    for b in range(begin // block_size, (end - 1) // block_size + 1):
        at = b * block_size
        lo, hi = max(0, begin - at), min(block_size, end - at)
        _add_block(acc, r, values, tables[sequence, b], head, scores, at - chunk, lo, hi)
    return top, total


@njit(cache=True, fastmath=_FAST, parallel=True)
def attend(query, out, keys, values, tiles, tables, sinks, scaling, window, softcap, num_threads):  # type: ignore[no-untyped-def]
    """out[T, heads, v_dim] = attention of query[T, heads, k_dim] over the pool.

    tiles: int64 [n, 4] of (sequence, first token in the batch, its position, number of queries). Work is dealt out to the
    threads in turn, so that long and short pieces mix. window and softcap are 0 where there is none; sinks is empty or [heads].
    """
    kv_heads, block_size = keys.shape[1], keys.shape[2]
    groups = query.shape[1] // kv_heads
    v_dim = values.shape[3]
    num_tiles = tiles.shape[0]
    width = max(CHUNK // block_size, 1) * block_size
    for thread in prange(num_threads):
        scores = np.empty(width, np.float32)
        acc = np.empty((TILE * groups, v_dim), np.float32)
        tops = np.empty(TILE * groups, np.float32)
        totals = np.empty(TILE * groups, np.float32)
        for work in range(thread, num_tiles * kv_heads, num_threads):
            head, tile = work // num_tiles, work % num_tiles
            sequence, token, position, count = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2], tiles[tile, 3]
            rows = count * groups
            for r in range(rows):
                tops[r], totals[r] = _NEG, _ZERO
                if sinks.shape[0] > 0:
                    tops[r], totals[r] = sinks[head * groups + r % groups], _ONE
                for d in range(v_dim):
                    acc[r, d] = _ZERO
            seen = window if window > 0 else position + count
            first = max(0, position + 1 - seen) // width * width
            for chunk in range(first, position + count, width):
                for r in range(rows):
                    tops[r], totals[r] = _attend_row(
                        query, token + r // groups, head * groups + r % groups, position + r // groups, tables, sequence, head,
                        chunk, keys, values, scaling, seen, softcap, scores, acc, r, tops[r], totals[r],
                    )  # fmt: skip
            for r in range(rows):
                inverse = _ONE / totals[r]
                for d in range(v_dim):
                    out[token + r // groups, head * groups + r % groups, d] = acc[r, d] * inverse
