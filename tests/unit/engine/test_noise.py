"""The sampler's noise: known answers, ranges, independence of what else is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from sparkinfer.engine import noise

# Random123's published answers for philox4x32-10; the first two of four words.
KNOWN = [(0, 0, 0xE169C58D6627E8D5)]


@pytest.mark.parametrize(("key", "counter", "bits"), KNOWN)
def test_philox_gives_its_published_answer(key: int, counter: int, bits: int) -> None:
    assert int(noise.philox(np.array([key], np.uint64), np.array([counter], np.uint64))[0]) == bits


def test_noise_depends_on_key_position_and_token_alone() -> None:
    keys = np.array([3, 2**64 - 1, 3], np.uint64)
    positions = np.array([0, 5, 1], np.uint64)
    together = noise.gumbel(keys, positions, np.arange(1000))
    for row in range(3):
        alone = noise.gumbel(keys[row : row + 1], positions[row : row + 1], np.arange(1000))
        assert np.array_equal(alone[0], together[row])
    few = noise.gumbel(keys, positions, np.array([[7, 900]] * 3))
    assert np.array_equal(few, together[:, [7, 900]])
    assert len({tuple(row[:4]) for row in together}) == 3


def test_uniform_numbers_lie_strictly_between_zero_and_one_and_are_spread_evenly() -> None:
    numbers = noise.uniform(np.arange(50, dtype=np.uint64), np.zeros(50, np.uint64), np.arange(4000))
    assert numbers.min() > 0.0
    assert numbers.max() < 1.0
    counts, _ = np.histogram(numbers, bins=20, range=(0.0, 1.0))
    expected = numbers.size / 20
    assert (
        (counts - expected) ** 2 / expected
    ).sum() < 60  # chi-square, 19 degrees of freedom: 60 is beyond 1 in 10**5


def test_gumbel_noise_is_finite_and_has_the_mean_of_its_distribution() -> None:
    draws = noise.gumbel(np.arange(50, dtype=np.uint64), np.ones(50, np.uint64), np.arange(4000))
    assert np.isfinite(draws).all()
    assert draws.mean() == pytest.approx(0.5772, abs=0.02)
