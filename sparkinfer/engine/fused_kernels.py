"""What lies between a layer's matrix products, each as one pass over memory; compiled by numba for the machine it runs on.

Each comes as a function of some rows, for a step of few tokens, and as one that deals pieces out to the threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from sparkinfer.engine import simd
from sparkinfer.engine.simd import LANES

#: Numbers may be summed in any order. (Below, ``error_model``: no check for zero, or a division is not vectorised.)
_FAST = {"reassoc", "contract", "arcp", "nsz"}
_ONE = np.float32(1.0)
_LARGEST = np.float32(87.0)  # exp of more is beyond float32
_AT_ONCE = 512


@njit(cache=True, fastmath=_FAST, error_model="numpy")
def norm_rows(out, hidden, weight, epsilon, first, last):  # type: ignore[no-untyped-def]
    """out[r] = hidden[r] * weight / sqrt(mean(hidden[r]^2) + epsilon) for rows of [T, width] from ``first`` to ``last``."""
    width = hidden.shape[1]
    for r in range(first, last):
        total = np.float32(0.0)
        for d in range(width):
            total += hidden[r, d] * hidden[r, d]
        scale = np.float32(1.0 / np.sqrt(total / width + epsilon))
        for d in range(width):
            out[r, d] = hidden[r, d] * scale * weight[d]


@njit(cache=True, fastmath=_FAST, parallel=True)
def norm(out, hidden, weight, epsilon, pieces):  # type: ignore[no-untyped-def]
    """:func:`norm_rows` for all rows."""
    count = hidden.shape[0]
    for piece in prange(pieces):
        norm_rows(out, hidden, weight, epsilon, count * piece // pieces, count * (piece + 1) // pieces)


@njit(cache=True, fastmath=_FAST, error_model="numpy")
def gate_rows(gates, up, first, last):  # type: ignore[no-untyped-def]
    """gates[r] = silu(gates[r]) * up[r] for rows of [T, width] from ``first`` to ``last``."""
    width = gates.shape[1]
    powers = np.zeros(_AT_ONCE, np.float32)
    for r in range(first, last):
        for begin in range(0, width, _AT_ONCE):
            some, others = gates[r, begin : begin + _AT_ONCE], up[r, begin : begin + _AT_ONCE]
            count = len(some)
            for i in range(count):
                powers[i] = min(-some[i], _LARGEST)
            simd.exponentials(powers, 0, (count + LANES - 1) // LANES * LANES, np.float32(0.0), LANES)
            for i in range(count):
                # Beyond it nothing is left; infinity times nothing is no number.
                is_seen = np.float32(some[i] > -_LARGEST)
                some[i] = some[i] * is_seen * others[i] / (_ONE + powers[i])


@njit(cache=True, fastmath=_FAST, parallel=True)
def gate(gates, up, pieces):  # type: ignore[no-untyped-def]
    """:func:`gate_rows` for all rows."""
    count = gates.shape[0]
    for piece in prange(pieces):
        gate_rows(gates, up, count * piece // pieces, count * (piece + 1) // pieces)


@njit(cache=True, fastmath=_FAST, error_model="numpy")
def rotate_rows(out, states, cosines, sines, first, last):  # type: ignore[no-untyped-def]
    """out[t, h] = states[t, h] turned by the angles of token t (Su et al., 2021; halves as in GPT-NeoX), [T, heads, dim]."""
    half = states.shape[2] // 2
    for t in range(first, last):
        for h in range(states.shape[1]):
            for d in range(half):
                one, other = states[t, h, d], states[t, h, d + half]
                out[t, h, d] = one * cosines[t, d] - other * sines[t, d]
                out[t, h, d + half] = other * cosines[t, d + half] + one * sines[t, d + half]


@njit(cache=True, fastmath=_FAST, parallel=True)
def rotate(out, states, cosines, sines, pieces):  # type: ignore[no-untyped-def]
    """:func:`rotate_rows` for all tokens."""
    count = states.shape[0]
    for piece in prange(pieces):
        rotate_rows(out, states, cosines, sines, count * piece // pieces, count * (piece + 1) // pieces)
