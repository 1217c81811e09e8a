"""Trials on the clock: which of several ways to compute the same is faster on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")
_TRIALS = 3


def best_of(
    forward: Callable[[T], torch.Tensor],
    given: T,
    *,
    trials: int = _TRIALS,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds of the fastest of some calls, with what a GPU still does for them.

    Args:
        forward: what is tried.
        given: its argument.
        trials: how many calls.
        clock: ``time.process_time`` counts the CPU seconds of all threads, which a host that others use disturbs less.
    """
    seconds = []
    for _ in range(trials):
        start = clock()
        answer = forward(given)
        if answer.is_cuda:
            torch.cuda.synchronize(answer.device)
        seconds.append(clock() - start)
    return min(seconds)
