"""Products of a few rows with a layer's weights as they lie, compiled by numba for the machine it runs on.

Rows of both operands lie along the sum, so that no weight has to be moved before it is multiplied: for few rows that costs a
library more than the product. A tile is four rows by three columns, whose sums stay in registers; a stretch of the sum is so long
that the tile's columns stay in the first cache for all rows. The next columns are asked for little by little meanwhile: each is
too short for the hardware to see where reading goes on.
"""

from __future__ import annotations

from numba import njit, prange

from sparkinfer.engine import simd
from sparkinfer.engine.simd import REGISTER

#: Columns of one piece of work, whole tiles, and floats of the rows that are multiplied with them at a time: both stay in the second cache.
PIECE, BLOCK = 48, 36_864
STRETCH = 768
_FAST = {"reassoc", "contract", "nsz"}


@njit(cache=True, fastmath=_FAST)
def _tile(out, rows, weights, place, length, left, adds):  # type: ignore[no-untyped-def]
    """The sums of up to four rows and three columns over a stretch; of a later one, added to what is there."""
    if left >= 4:
        simd.dots(out, rows, weights, place, length, 4, 3, REGISTER, adds)
    elif left == 3:
        simd.dots(out, rows, weights, place, length, 3, 3, REGISTER, adds)
    elif left == 2:
        simd.dots(out, rows, weights, place, length, 2, 3, REGISTER, adds)
    else:
        simd.dots(out, rows, weights, place, length, 1, 3, REGISTER, adds)


@njit(cache=True, fastmath=_FAST)
def _three_columns(out, rows, weights, column, first, last, coming):  # type: ignore[no-untyped-def]
    """Rows from ``first`` to ``last`` by three columns; ``coming`` is how many floats behind those columns are wanted next."""
    depth, width = rows.shape[1], weights.shape[0]
    asked, steps = 0, (depth + STRETCH - 1) // STRETCH * ((last - first + 3) // 4)
    share = (coming + steps - 1) // steps
    for begin in range(0, depth, STRETCH):
        length = min(STRETCH, depth - begin)
        for row in range(first, last, 4):
            simd.prefetch(weights, (column + 3) * depth + asked, min(share, coming - asked))
            asked = min(asked + share, coming)
            place = (row * width + column, width, row * depth + begin, depth, column * depth + begin, depth)
            _tile(out, rows, weights, place, length, last - row, begin > 0)


@njit(cache=True)
def _tiles_before(block, blocks, count):  # type: ignore[no-untyped-def]
    """The first row of a block, where all have about as many tiles of four rows."""
    return min(count, (count + 3) // 4 * block // blocks * 4)


@njit(cache=True, fastmath=_FAST)
def _piece(out, rows, weights, column):  # type: ignore[no-untyped-def]
    """All rows by the columns of the piece that begins at ``column``."""
    count, depth = rows.shape
    width = weights.shape[0]
    most = max(BLOCK // depth // 4, 1) * 4
    blocks = (count + most - 1) // most
    end = min(width, column + PIECE)
    for block in range(blocks):
        first, last = _tiles_before(block, blocks, count), _tiles_before(block + 1, blocks, count)
        for c in range(column, end - 2, 3):
            coming = min(width - c - 3, 3) * depth if block == 0 else 0  # afterwards they are near
            _three_columns(out, rows, weights, c, first, last, coming)
    for c in range(end - (end - column) % 3, end):
        for row in range(count):
            place = (row * width + c, width, row * depth, depth, c * depth, depth)
            simd.dots(out, rows, weights, place, depth, 1, 1, REGISTER, False)


@njit(cache=True)
def _pieces(weights):  # type: ignore[no-untyped-def]
    return (weights.shape[0] + PIECE - 1) // PIECE


@njit(cache=True)
def _numbered_piece(outs, rows, weights, number):  # type: ignore[no-untyped-def]
    """The piece of that number, all products in a row."""
    for which in range(len(weights)):
        pieces = _pieces(weights[which])
        if number < pieces:
            _piece(outs[which], rows, weights[which], number * PIECE)
            break
        number -= pieces


@njit(cache=True, parallel=True)
def multiply(outs, rows, weights):  # type: ignore[no-untyped-def]
    """outs[i][M, N_i] = rows[M, K] @ weights[i][N_i, K].T, all float32 and contiguous, K a multiple of ``REGISTER``.

    The pieces of all products are dealt out at once: threads are woken once, and small products fill them together.
    """
    total = 0
    for which in range(len(weights)):
        total += _pieces(weights[which])
    for number in prange(total):
        _numbered_piece(outs, rows, weights, number)
