"""Every model proves itself at load: packed together, prompts must give the logits that each gives alone.

Alone means transformers' own eager attention without a cache. Packed means what the engine does: several prompts in one
forward, one of them in chunks, then decodes beside them, through scattered blocks. Lengths lie on both sides of windows where
that is cheap; what is too long to try is settled by :func:`untested_reason`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from sparkinfer.engine.attention.base import LayerShape, pack
from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.device_errors import DEVICE_ERRORS
from sparkinfer.engine.plan import PlannedSequence, RunnerLost
from sparkinfer.engine.probe import text_config
from sparkinfer.engine.runner import PackedRunner
from sparkinfer.engine.sequence import Sequence as TokenSequence
from sparkinfer.errors import SelfCheckFailed, SparkInferError
from sparkinfer.model.quantised import kept_activations
from sparkinfer.types import SamplingParams

_BUDGET_FLOPS = 30e9
_DECODES = 3  # so that a step of all prompts comes twice: recorded, then replayed with other numbers
_SHORT = (3, 18, 37)
_TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}  # of the largest logit
_BATCH_WIDE_ROPE = ("dynamic", "longrope")  # frequencies follow the longest position of the whole batch
#: Failures that say nothing about packing.
_OTHER_FAILURES: tuple[type[Exception], ...] = (
    SparkInferError,
    RunnerLost,
    MemoryError,
    torch.OutOfMemoryError,
    *DEVICE_ERRORS,
)


@dataclass(frozen=True, slots=True)
class Alone:
    """What each prompt gives alone.

    Attributes:
        prompts: ids, with the decoded ones behind.
        logits: float ``[prompts * (1 + decodes), vocabulary]``.
    """

    prompts: list[list[int]]
    logits: torch.Tensor


def alone(model: PreTrainedModel, shapes: Sequence[LayerShape], *, max_model_len: int) -> Alone:
    """The logits that packed ones have to equal, from the model as it is: to be asked for before anything in it is changed.

    Args:
        model: loaded, in eval mode; left on eager attention.
        shapes: its attention layers.
        max_model_len: longest sequence that the engine will take.

    Raises:
        SelfCheckFailed: something cannot be tried and is not known to be safe.
    """
    reason = untested_reason(text_config(model.config), shapes, max_model_len)
    if reason is not None:
        raise SelfCheckFailed(f"{model.config.model_type} cannot be packed: {reason}")
    prompts = _prompts(_lengths(model, shapes, max_model_len), text_config(model.config).vocab_size)
    model.set_attn_implementation("eager")
    with kept_activations(), torch.compiler.set_stance("force_eager"):
        return Alone(prompts, _alone(model, prompts))


def check(model: PreTrainedModel, want: Alone, make_runner: Callable[[int], PackedRunner]) -> str:
    """Compare packed with alone.

    Args:
        model: left on the packed implementation.
        want: what :func:`alone` gave.
        make_runner: a runner over a pool of so many blocks.

    Returns:
        One phrase for the log: what was compared and the largest difference.

    Raises:
        SelfCheckFailed: they differ, or packed prompts cannot be run.
    """
    try:
        with kept_activations():
            packed = _packed(make_runner, want.prompts)
    except _OTHER_FAILURES:
        raise
    except Exception as error:  # what does not fit the packed call in any way can still be run alone
        raise SelfCheckFailed(
            f"{model.config.model_type}: packed prompts raise {type(error).__name__}: {error}"
        ) from error
    scale = float(want.logits.abs().max())
    difference = float((want.logits - packed).abs().max()) / max(scale, 1e-6)
    if not difference <= _TOLERANCE[model.dtype]:
        raise SelfCheckFailed(
            f"{model.config.model_type}: packed prompts give other logits than each alone (largest difference {difference:.1e} "
            f"of the largest logit, allowed {_TOLERANCE[model.dtype]:.0e})."
        )
    longest = max(map(len, want.prompts))
    return f"{len(want.prompts)} prompts up to {longest} tokens, largest difference {difference:.1e}"


def untested_reason(config: PretrainedConfig, shapes: Sequence[LayerShape], max_model_len: int) -> str | None:
    """Why a model must not be packed although short prompts agree; None where nothing speaks against it."""
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        kind = parameters.get("rope_type", "default")
        threshold = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
        if kind in _BATCH_WIDE_ROPE and max_model_len > threshold:
            return (
                f"its {kind} rotary embedding changes beyond {threshold} tokens for the whole batch. "
                f"Set max_model_len={threshold} to use the fast path."
            )
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk and max_model_len > chunk and "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        return f"its attention works in chunks of {chunk} tokens. Set max_model_len={chunk} to use the fast path."
    return _window_reason(config, shapes, max_model_len)


def _window_reason(config: PretrainedConfig, shapes: Sequence[LayerShape], max_model_len: int) -> str | None:
    window = getattr(config, "sliding_window", None)
    if not window or window >= max_model_len or not getattr(config, "use_sliding_window", True):
        return None
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * len(shapes)
    for index, (kind, shape) in enumerate(zip(kinds, shapes, strict=True)):
        if shape.window != (window if kind == "sliding_attention" else None):
            return f"layer {index} is {kind} with a window of {window}, but attention was asked for {shape.window}."
    return None


def _lengths(model: PreTrainedModel, shapes: Sequence[LayerShape], max_model_len: int) -> list[int]:
    affordable = int(_BUDGET_FLOPS / (2 * max(model.num_parameters(), 1)))
    windows = {shape.window for shape in shapes if shape.window}
    beyond = [window + 9 for window in windows if window + 9 <= max(affordable, 64)]
    return [max(1, min(length, max_model_len - _DECODES)) for length in (*_SHORT, *beyond)]


def _prompts(lengths: list[int], vocab_size: int) -> list[list[int]]:
    """Fixed ids, every prompt with its decoded tokens already behind it."""
    rng = np.random.default_rng(20261130)
    return [rng.integers(0, vocab_size, length + _DECODES).tolist() for length in lengths]


@torch.inference_mode()
def _alone(model: PreTrainedModel, prompts: list[list[int]]) -> torch.Tensor:
    """float [prompts * (1 + decodes), vocabulary]: the logits after the prompt and after each decoded token."""
    rows = []
    for prompt in prompts:
        logits = model(input_ids=torch.tensor([prompt], device=model.device), use_cache=False).logits[0]
        rows.append(logits[-1 - _DECODES :].float())
    return torch.cat(rows)


def _packed(make_runner: Callable[[int], PackedRunner], prompts: list[list[int]]) -> torch.Tensor:
    """The same logits through the runner: the last prompt comes in two chunks while the others already decode."""
    runner = make_runner(sum(len(p) for p in prompts) + 1)
    sequences = _sequences(prompts, runner.block_size)
    rows: list[list[torch.Tensor]] = [[] for _ in prompts]
    done = [0] * len(prompts)
    late = len(prompts) - 1
    while any(len(found) <= _DECODES for found in rows):
        items: list[PlannedSequence] = []
        for index, sequence in enumerate(sequences):
            left = len(prompts[index]) - _DECODES - done[index]
            count = (left // 2 or left) if index == late and done[index] == 0 else max(left, 1)
            if len(rows[index]) <= _DECODES:
                items.append(PlannedSequence(sequence, done[index], count, left <= count))
        items.sort(key=lambda item: not item.is_decode)
        logits = iter(runner.logits(pack(items, runner.block_size)).float())
        for item in items:
            index = sequences.index(item.sequence)
            done[index] += item.num_tokens
            if item.samples:
                rows[index].append(next(logits))
    return torch.stack([row for found in rows for row in found])


def _sequences(prompts: list[list[int]], block_size: int) -> list[TokenSequence]:
    """Sequences over blocks that lie scattered and out of order."""
    blocks = np.random.default_rng(7).permutation(sum(len(p) for p in prompts)).tolist()
    sequences = []
    for number, prompt in enumerate(prompts):
        request = EngineRequest(request_id=number, prompt_ids=prompt, sampling=SamplingParams())
        sequence = TokenSequence.from_request(request)
        sequence.block_ids = [blocks.pop() for _ in range(-(-len(prompt) // block_size))]
        sequences.append(sequence)
    return sequences
