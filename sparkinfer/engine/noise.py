"""Noise for drawing tokens: a pure function of (key, position, token id), the same on every machine and in every batch.

Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) turns (key, position) into 64 bits; SplitMix64
(Steele et al., 2014), counted by the token id, spreads them over the vocabulary. Integer arithmetic only until the last step.
"""

from __future__ import annotations

import numpy as np

_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_32 = np.uint64(32)


def philox(keys: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """64 random bits for each (key, counter).

    Args:
        keys: uint64 ``[n]``.
        counters: uint64 ``[n]``.

    Returns:
        uint64 ``[n]``: the first two of Philox 4x32-10's four words.
    """
    k0, k1 = keys & _LOW, keys >> _32
    c0, c1 = counters & _LOW, counters >> _32
    c2 = c3 = np.zeros_like(counters)
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _LOW, (p0 >> _32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0 | (c1 << _32)


def uniform(keys: np.ndarray, positions: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
    """Numbers above 0 and below 1.

    Args:
        keys: uint64 ``[n]``, one per sequence.
        positions: uint64 ``[n]``, how many tokens each has generated.
        token_ids: integer ``[n, m]`` or ``[m]``.

    Returns:
        float64 ``[n, m]``.
    """
    z = philox(keys, positions)[:, None] + (token_ids.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54


def gumbel(keys: np.ndarray, positions: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise: the best of (log-probability + noise) is a draw from the distribution. See :func:`uniform`."""
    draws: np.ndarray = -np.log(-np.log(uniform(keys, positions, token_ids)))
    return draws
