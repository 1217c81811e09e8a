"""Products of a few rows with a layer's weights as they lie, compiled by numba for the machine it runs on.

Rows of both operands lie along the sum, so that no weight has to be moved before it is multiplied: for few rows that costs a
library more than the product. A tile is four rows by three columns, whose sums stay in registers.
"""

from __future__ import annotations

from numba import njit, prange

from sparkinfer.engine import simd
from sparkinfer.engine.simd import REGISTER

#: Columns of one piece of work, whole tiles.
PIECE = 48


@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def _three_columns(out, rows, weights, column, count, width, depth):  # type: ignore[no-untyped-def]
    row = 0
    while row < count:
        left = count - row
        place = (row * width + column, width, row * depth, depth, column * depth, depth)
        if left >= 4:
            simd.dots(out, rows, weights, place, depth, 4, 3, REGISTER)
            row += 4
        elif left == 3:
            simd.dots(out, rows, weights, place, depth, 3, 3, REGISTER)
            row += 3
        elif left == 2:
            simd.dots(out, rows, weights, place, depth, 2, 3, REGISTER)
            row += 2
        else:
            simd.dots(out, rows, weights, place, depth, 1, 3, REGISTER)
            row += 1


@njit(cache=True, fastmath={"reassoc", "contract", "nsz"}, parallel=True)
def multiply(out, rows, weights):  # type: ignore[no-untyped-def]
    """out[M, N] = rows[M, K] @ weights[N, K].T, all float32 and contiguous, K a multiple of ``REGISTER``."""
    count, depth = rows.shape
    width = weights.shape[0]
    for piece in prange((width + PIECE - 1) // PIECE):
        column = piece * PIECE
        end = min(width, column + PIECE)
        while column + 3 <= end:
            _three_columns(out, rows, weights, column, count, width, depth)
            column += 3
        while column < end:
            for row in range(count):
                place = (row * width + column, width, row * depth, depth, column * depth, depth)
                simd.dots(out, rows, weights, place, depth, 1, 1, REGISTER)
            column += 1
