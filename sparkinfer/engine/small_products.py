"""Linear layers on the CPU whose products of not so many rows are our own, where a trial at load shows that it pays.

A decode step has as many rows as sequences. Libraries bring the weights into another order for every product, which serves many rows
and costs more than the product of a few; keeping them in that order would take a second copy of all weights, which executors of
one host share. The kernel takes them as they lie. Most is gained where a layer is wide and its rows are short, as in the output layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from sparkinfer.engine.kernel_cache import use_kernel_cache
from sparkinfer.model.trial import best_of

#: Numbers of rows that are tried: the kernel serves all up to the first of these at which it is the faster one.
_TRIAL_ROWS = (256, 128, 96, 64, 48, 32, 16, 8, 4)
_TRIALS = 5
#: No trial is larger, or the products of an output layer would take seconds.
_TRIAL_FLOP = 8e9
#: How much faster it has to be: less is noise.
_LEAST_GAIN = 1.1
_TOLERANCE = 1e-4  # of the largest number: another order of the same sums


@torch.inference_mode()
def multiply_few_rows(model: PreTrainedModel, *, threads: int) -> dict[tuple[int, int], int]:
    """Let linear layers use the kernel, for float32 on the CPU.

    Args:
        model: in eval mode; changed in place.
        threads: of a product.

    Returns:
        By shape ``(out, in)``, up to how many rows; 0: it did not pay.
    """
    layers = [module for module in model.modules() if _is_plain(module)]
    if model.device.type != "cpu" or not layers:
        return {}
    use_kernel_cache()
    import numba

    from sparkinfer.engine.small_products_kernel import multiply

    numba.set_num_threads(max(1, min(threads, numba.config.NUMBA_NUM_THREADS)))
    most: dict[tuple[int, int], int] = {}
    for layer in layers:
        shape = (layer.out_features, layer.in_features)
        if shape not in most:
            most[shape] = _most_rows(layer, multiply)
        if most[shape]:
            layer.forward = _with_kernel(layer, multiply, most[shape])
    return most


def restore(model: PreTrainedModel) -> None:
    """Give the layers their own forwards back."""
    for module in model.modules():
        if hasattr(vars(module).get("forward"), "is_own_product"):
            del module.forward


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


def _with_kernel(layer: nn.Linear, multiply: Callable[..., None], most: int) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    as_array = weight.numpy()

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        count = hidden.numel() // layer.in_features
        if not 1 < count <= most:  # one row is a product of another kind, for which libraries have their own code
            return nn.functional.linear(hidden, weight, bias)
        out = hidden.new_empty((*hidden.shape[:-1], layer.out_features))
        rows = hidden.reshape(count, layer.in_features).contiguous()
        multiply(out.view(count, layer.out_features).numpy(), rows.numpy(), as_array)
        return out if bias is None else out.add_(bias)

    forward.is_own_product = True  # type: ignore[attr-defined]
    return forward


def _most_rows(layer: nn.Linear, multiply: Callable[..., None]) -> int:
    """Up to how many rows the kernel is right and faster."""
    ours = _with_kernel(layer, multiply, _TRIAL_ROWS[0])
    generator = torch.Generator(device="cpu").manual_seed(1)
    for count in _TRIAL_ROWS:
        if 2.0 * count * layer.weight.numel() > _TRIAL_FLOP:
            continue
        rows = torch.randn((1, count, layer.in_features), generator=generator, dtype=torch.float32, device="cpu")
        want, got = layer(rows), ours(rows)
        if not float((want - got).abs().max()) <= _TOLERANCE * float(want.abs().max()):
            return 0
        plain, own = (best_of(way, rows, trials=_TRIALS, clock=time.process_time) for way in (layer, ours))
        if plain > _LEAST_GAIN * own:
            return count
    return 0
