"""Trials on the clock: which of several ways to compute the same is faster on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_TRIALS = 3


def best_of(forward: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor) -> float:
    """Seconds of the fastest of three calls."""
    seconds = []
    for _ in range(_TRIALS):
        start = time.perf_counter()
        forward(tokens)
        if tokens.is_cuda:
            torch.cuda.synchronize(tokens.device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
