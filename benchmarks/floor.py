"""The floor: the seconds that a workload's floating-point operations take at the machine's own matrix-product speed.

What must be executed is taken from the rows themselves: a prefix that several prompts share is computed once, a repeated row
once where reuse is on, the head only where a token is drawn, decode steps with all rows that are not yet done (at most
``MAX_BATCH``). Norms, softmax, scheduling and memory traffic of the KV cache count nothing. The speed is that of torch's products, and
each token out takes a pass of its own: an engine can only be below it by other products of few rows, or by guesses that are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any

MAX_BATCH = 256


def floor(
    prompts: Sequence[Sequence[int]], lengths: Sequence[int], peaks: dict[str, Any], *, reuse: bool
) -> dict[str, float]:
    """Seconds by phase and their sum.

    Args:
        prompts: token ids of each row.
        lengths: tokens out of each row.
        peaks: what :func:`benchmarks.machine.peaks` measured.
        reuse: whether equal rows count once.
    """
    rows = list(zip(map(tuple, prompts), lengths, strict=True))
    if reuse:
        rows = list(dict.fromkeys(rows))
    tokens, contexts = unique_prefill(sorted(prompt for prompt, _ in rows))
    widest = max(map(int, peaks["body_s"]))
    phases = {
        "prefill_s": tokens * _seconds(peaks["body_s"], widest) / widest,
        "decode_s": 0.0,
        "head_s": len(rows) * _seconds(peaks["head_s"], 32) / 32,
    }
    for active in decode_batches([length for _, length in rows]):
        phases["decode_s"] += _seconds(peaks["body_s"], active)
        phases["head_s"] += _seconds(peaks["head_s"], active)
    contexts += sum(len(prompt) + step for prompt, length in rows for step in range(1, length))
    flops = 4 * peaks["layers"] * peaks["heads"] * peaks["head_dim"] * contexts  # query by keys, weights by values
    phases["attention_s"] = flops / (peaks["fp32_gflops"] * 1e9)
    return {**phases, "total_s": sum(phases.values()), "prefill_tokens": tokens}


def unique_prefill(prompts: list[tuple[int, ...]]) -> tuple[int, int]:
    """Tokens of sorted prompts that no earlier one begins with, and the sum of the contexts they attend to."""
    tokens = contexts = 0
    before: tuple[int, ...] = ()
    for prompt in prompts:
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, prompt, strict=False)))
        tokens += len(prompt) - shared
        contexts += (len(prompt) * (len(prompt) + 1) - shared * (shared + 1)) // 2
        before = prompt
    return tokens, contexts


def decode_batches(lengths: list[int]) -> list[int]:
    """Rows of each decode step where a finished row's place is taken by a waiting one, the longest rows first."""
    left = sorted((length - 1 for length in lengths if length > 1), reverse=True)
    batches = []
    running: list[int] = []
    while left or running:
        while left and len(running) < MAX_BATCH:
            running.append(left.pop(0))
        batches.append(len(running))
        running = [steps - 1 for steps in running if steps > 1]
    return batches


def _seconds(measured: dict[str, float], rows: int) -> float:
    """Interpolated between the two nearest measured numbers of rows; beyond the largest in proportion."""
    points = sorted((int(count), seconds) for count, seconds in measured.items())
    for (low, low_s), (high, high_s) in pairwise(points):
        if low <= rows <= high:
            return low_s + (high_s - low_s) * (rows - low) / (high - low)
    return points[-1][1] * rows / points[-1][0]
