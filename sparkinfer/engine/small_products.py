"""Linear layers on the CPU whose products of not so many rows are our own, where a trial at load shows that it pays.

A decode step has as many rows as sequences. Libraries bring the weights into another order for every product, which serves many rows
and costs more than the product of a few; keeping them in that order would take a second copy of all weights, which executors of
one host share. The kernel takes them as they lie. Most is gained where a layer is wide and its rows are short, as in the output layer.
Layers that get the same input, as those of queries, keys and values do, share one call.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from sparkinfer.engine.kernel_cache import use_kernel_cache
from sparkinfer.engine.replays import run_kernel
from sparkinfer.model.trial import best_of

#: Numbers of rows that are tried: the kernel serves all up to the first of these at which it is the faster one.
_TRIAL_ROWS = (256, 128, 96, 64, 48, 32, 16, 8, 4)
#: How often: a long call is disturbed for less of its time, and loading waits for it.
_TRIALS, _LONG_TRIALS, _LONG_FLOP = 5, 2, 1e9
#: No trial is larger, or the products of an output layer would take seconds.
_TRIAL_FLOP = 8e9
#: How much faster it has to be: less is noise.
_LEAST_GAIN = 1.1
_TOLERANCE = 1e-4  # of the largest number: another order of the same sums


Multiply = Callable[[tuple[np.ndarray, ...], np.ndarray, tuple[np.ndarray, ...]], None]


@torch.inference_mode()
def multiply_few_rows(model: PreTrainedModel, *, threads: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Let linear layers use the kernel, for float32 on the CPU.

    Args:
        model: in eval mode; changed in place, and run once where anything is.
        threads: of a product.

    Returns:
        By shape ``(out, in)``, from how many rows up to how many; the second is 0 where it did not pay.
    """
    layers = [module for module in model.modules() if _is_plain(module)]
    if model.device.type != "cpu" or not layers:
        return {}
    use_kernel_cache()
    import numba

    from sparkinfer.engine.small_products_kernel import multiply

    numba.set_num_threads(max(1, min(threads, numba.config.NUMBA_NUM_THREADS)))
    served: dict[tuple[int, int], tuple[int, int]] = {}
    for layer in layers:
        if _shape(layer) not in served:
            served[_shape(layer)] = _served_rows(layer, multiply)
    ours = [layer for layer in layers if served[_shape(layer)][1]]
    for group in _with_the_same_input(model, ours) if ours else ():
        products = Products(group, multiply, [served[_shape(layer)] for layer in group])
        for place, layer in enumerate(group):
            layer.forward = partial(products.forward, place)  # type: ignore[method-assign]
    return served


class Products:
    """Layers of one input: where the kernel serves all of them, who asks for the first gets the others computed too."""

    def __init__(self, layers: list[nn.Linear], multiply: Multiply, served: list[tuple[int, int]]) -> None:
        """Args:
        layers: in the order in which the model asks for them.
        multiply: the kernel.
        served: from how many rows up to how many it serves each of them.
        """
        self._multiply, self._served = multiply, served
        self._together = max(least for least, _ in served), min(most for _, most in served)
        self._weights = [layer.weight.detach() for layer in layers]
        self._biases = [None if layer.bias is None else layer.bias.detach() for layer in layers]
        self._arrays = [weight.numpy() for weight in self._weights]
        self._input: torch.Tensor | None = None
        self._waiting: list[torch.Tensor] = []  # the answers of the last layers, for this input

    def forward(self, place: int, hidden: torch.Tensor) -> torch.Tensor:
        """The answer of one layer, with the bits that it has alone."""
        last = len(self._weights)
        if place and hidden is self._input and len(self._waiting) == last - place:
            return self._waiting.pop(0)
        count = hidden.numel() // hidden.shape[-1]
        if place == 0 and last > 1 and _lies_in(count, self._together):
            self._input, self._waiting = hidden, self._products(hidden, count, 0, last)
            return self._waiting.pop(0)
        if _lies_in(count, self._served[place]):
            return self._products(hidden, count, place, place + 1)[0]
        return nn.functional.linear(hidden, self._weights[place], self._biases[place])

    def _products(self, hidden: torch.Tensor, count: int, first: int, last: int) -> list[torch.Tensor]:
        rows = hidden.reshape(count, hidden.shape[-1]).contiguous()
        outs = [rows.new_empty((count, weight.shape[0])) for weight in self._weights[first:last]]
        run_kernel(self._multiply, tuple(out.numpy() for out in outs), rows.numpy(), tuple(self._arrays[first:last]))
        for out, bias in zip(outs, self._biases[first:last], strict=True):
            if bias is not None:
                out.add_(bias)
        return [out.view(*hidden.shape[:-1], out.shape[-1]) for out in outs]


def _is_plain(module: Any) -> bool:
    """A linear layer as torch has it, whose rows fill registers."""
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)
        and type(module.weight) is nn.Parameter
        and module.weight.dtype is torch.float32
        and module.weight.is_contiguous()
        and module.in_features % 16 == 0
    )


def _shape(layer: nn.Linear) -> tuple[int, int]:
    return layer.out_features, layer.in_features


def _lies_in(count: int, span: tuple[int, int]) -> bool:
    return span[0] <= count <= span[1]


def _with_the_same_input(model: PreTrainedModel, layers: list[nn.Linear]) -> Iterator[list[nn.Linear]]:
    """The layers, together where a step of the model asks for one after the other with the very same tensor."""
    asked: list[
        tuple[nn.Linear, torch.Tensor | None]
    ] = []  # which holds the tensors, so that none takes another's place

    def note(layer: nn.Linear, given: tuple[torch.Tensor, ...]) -> None:
        asked.append((layer, given[0] if len(given) == 1 else None))

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    model(input_ids=torch.zeros((1, 2), dtype=torch.long), use_cache=False)
    for hook in hooks:
        hook.remove()
    times = Counter(layer for layer, _ in asked)
    groups: list[list[nn.Linear]] = []
    before = None
    for layer, given in asked:
        if times[layer] > 1:  # which of its calls belongs to which other layers is not to be told
            before = None
            continue
        if given is not None and given is before:
            groups[-1].append(layer)
        else:
            groups.append([layer])
        before = given
    yield from groups
    joined = {layer for group in groups for layer in group}
    yield from ([layer] for layer in layers if layer not in joined)


def _served_rows(layer: nn.Linear, multiply: Multiply) -> tuple[int, int]:
    """From how many rows up to how many the kernel is right and faster."""
    most = next((count for count in _TRIAL_ROWS if _pays(layer, multiply, count)), 0)
    return (1 if most and _pays(layer, multiply, 1) else 2), most


def _pays(layer: nn.Linear, multiply: Multiply, count: int) -> bool:
    """Whether the kernel gives the same numbers and is the faster one."""
    flop = 2.0 * count * layer.weight.numel()
    if flop > _TRIAL_FLOP:
        return False
    generator = torch.Generator(device="cpu").manual_seed(1)
    rows = torch.randn((1, count, layer.in_features), generator=generator, dtype=torch.float32, device="cpu")
    ours = partial(Products([layer], multiply, [(1, count)]).forward, 0)
    want, got = layer(rows), ours(rows)
    if not float((want - got).abs().max()) <= _TOLERANCE * float(want.abs().max()):
        return False
    trials = _TRIALS if flop < _LONG_FLOP else _LONG_TRIALS
    plain, own = (best_of(way, rows, trials=trials, clock=time.process_time) for way in (layer, ours))
    return plain > _LEAST_GAIN * own
