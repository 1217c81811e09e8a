"""Modules of a loaded model that run as one pass over memory, where that gives the same numbers.

Between the products of a layer a model makes a temporary for every step of a norm, a gate or a rotary embedding: of 2,048 tokens of a
small model 5 to 12 MB each, which are written and read once more through the memory; of a few tokens it is the calls that cost. No
architecture is known by name: a module or function of the right form is tried on random numbers, small ones and large ones, and it is
changed only if its answer stays, up to the order of a sum. What is tried once holds for modules of the same type with the same settings.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from sparkinfer.engine.attention import hook
from sparkinfer.engine.kernel_cache import use_kernel_cache
from sparkinfer.engine.replays import run_kernel

Forward = Callable[..., torch.Tensor]
#: Sizes of the rows that are tried: a module that limits its numbers shows it on the large ones.
_TRIAL_SCALES = (0.01, 1.0, 30.0, 1000.0)
_TOLERANCE = 1e-5
_GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_ROTARY = "apply_rotary_pos_emb"
#: Numbers from which on the other threads are worth waking.
_GRAIN = 1 << 16


@torch.inference_mode()
def fuse(model: PreTrainedModel) -> dict[str, int]:
    """Change what can be changed, for float32 on the CPU; other dtypes round between the steps and stay as they are.

    Returns:
        How many modules (of rotary embeddings: functions) of each kind are changed now.
    """
    changed = {"gated_mlp": 0, "rms_norm": 0, "rotary": 0}
    if model.device.type != "cpu" or model.dtype is not torch.float32:
        return changed
    use_kernel_cache()
    proved: dict[tuple[Any, ...], str | None] = {}
    for module in model.modules():
        kind, forwards = _candidates(module)
        if not forwards:
            continue
        structure = (type(module), *(type(child) for child in module.children()), *_settings(module))
        if structure not in proved:
            proved[structure] = next((name for name, one in forwards.items() if _gives_the_same(module, one)), None)
        if (formula := proved[structure]) is not None:
            module.forward = forwards[formula]
            changed[kind] += 1
    for name in {type(module).__module__ for module in model.modules()}:
        changed["rotary"] += _fuse_rotary(sys.modules.get(name))
    return changed


def _candidates(module: Any) -> tuple[str, dict[str, Forward]]:
    """What kind of module it may be, and by their formulas the forwards that may take the place of its own."""
    if "forward" in vars(module) or len(inspect.signature(module.forward).parameters) != 1:
        return "", {}  # somebody's hook stands before it, or it takes more than its input
    own = vars(module)["_parameters"]
    if {name for name, _ in module.named_children()} == _GATED and hasattr(module.gate_proj, "in_features") and not own:
        return "gated_mlp", {name: partial(_gated_mlp, module, name == "silu") for name in ("silu", "another")}
    weight = own.get("weight")
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if "RMSNorm" not in type(module).__name__ or epsilon is None or set(own) != {"weight"} or not _is_plain(weight):
        return "", {}
    factors = {"weight": weight.detach(), "1 + weight": 1 + weight.detach()}
    return "rms_norm", {name: partial(_rms_norm, one.numpy(), float(epsilon)) for name, one in factors.items()}


def _is_plain(weight: Any) -> bool:
    is_float = type(weight) is nn.Parameter and weight.dtype is torch.float32
    return is_float and weight.device.type == "cpu" and weight.dim() == 1


def _settings(module: nn.Module) -> list[tuple[str, Any]]:
    """The module's own numbers, names and switches: layers of one type may differ in them."""
    return sorted((k, v) for k, v in vars(module).items() if v is None or isinstance(v, bool | int | float | str))


def _gives_the_same(module: Any, forward: Forward) -> bool:
    """Whether each row of random numbers keeps its answer, by one thread and by all."""
    width = module.gate_proj.in_features if hasattr(module, "gate_proj") else len(module.weight)
    scales = torch.tensor(_TRIAL_SCALES)[None, :, None]
    tokens = scales * _random((1, len(_TRIAL_SCALES), width))
    before = tokens.clone()
    try:
        want = module(tokens)
        is_near = all(_is_near(forward(tokens, grain=grain), want) for grain in (_GRAIN, 0))
    except Exception:  # whatever does not take these calls is another kind of module
        return False
    return is_near and torch.equal(tokens, before)


def _random(shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator(device="cpu").manual_seed(1)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def _is_near(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Row by row, or the largest would hide the others."""
    if got.shape != want.shape:
        return False
    return bool(((got - want).abs().amax(-1) <= _TOLERANCE * want.abs().amax(-1)).all())


def _gated_mlp(module: Any, is_silu: bool, hidden: torch.Tensor, *, grain: int = _GRAIN) -> torch.Tensor:
    """``down(act(gate(x)) * up(x))``, the product in the place of its first factor."""
    gate, up = module.gate_proj(hidden), module.up_proj(hidden)
    if is_silu:
        from sparkinfer.engine import fused_kernels as kernels

        _over_rows(kernels.gate_rows, kernels.gate, (_rows(gate), _rows(up)), grain)
    else:
        gate = module.act_fn(gate).mul_(up)
    down: torch.Tensor = module.down_proj(gate)
    return down


def _rms_norm(factor: np.ndarray, epsilon: float, hidden: torch.Tensor, *, grain: int = _GRAIN) -> torch.Tensor:
    """``factor * x / sqrt(mean(x^2) + epsilon)``."""
    from sparkinfer.engine import fused_kernels as kernels

    hidden = hidden.contiguous()
    out = torch.empty_like(hidden)
    _over_rows(kernels.norm_rows, kernels.norm, (_rows(out), _rows(hidden), factor, epsilon), grain)
    return out


def _fuse_rotary(namespace: Any) -> int:
    """Replace a modelling module's function of rotary embeddings, for the forwards of packed engines and nobody else's."""
    original = getattr(namespace, _ROTARY, None)
    if original is None:
        return 0
    if not hasattr(original, "is_fused"):
        if not _rotates(original):
            return 0
        setattr(namespace, _ROTARY, _in_packed_forwards(original))
    return 1


def _rotates(original: Callable[..., Any]) -> bool:
    states = [_random((1, 5, heads, 8)).transpose(1, 2) for heads in (4, 2)]
    angles = [_random((1, 5, 8)), _random((1, 6, 8))[:, 1:]]
    try:
        want = original(*states, *angles)
        return all(
            _is_near(_rotated(one, *angles, grain=grain), other)
            for one, other in zip(states, want, strict=True)
            for grain in (_GRAIN, 0)
        )
    except Exception:  # another function of that name
        return False


def _in_packed_forwards(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def apply_rotary_pos_emb(*given: Any, **named: Any) -> Any:
        if named or torch.compiler.is_compiling() or not hook.is_active() or not _fits(*given):
            return original(*given, **named)
        q, k, cos, sin = given
        return _rotated(q, cos, sin), _rotated(k, cos, sin)

    apply_rotary_pos_emb.is_fused = True  # type: ignore[attr-defined]
    return apply_rotary_pos_emb


def _fits(*given: Any) -> bool:
    """Two states [1, heads, T, dim] and two angles [1, T, dim], float32 on the CPU."""
    if len(given) != 4 or not all(isinstance(one, torch.Tensor) and one.device.type == "cpu" for one in given):
        return False
    angles = (1, *given[0].shape[-2:])
    are_states = all(one.dim() == 4 and (one.shape[0], *one.shape[-2:]) == angles for one in given[:2])
    are_angles = all(tuple(one.shape) == angles for one in given[2:])
    return are_states and are_angles and all(one.dtype is torch.float32 for one in given)


def _rotated(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, grain: int = _GRAIN) -> torch.Tensor:
    """[1, heads, T, dim], lying as the projection before it and the attention behind it have it: token by token."""
    from sparkinfer.engine import fused_kernels as kernels

    by_token = states[0].transpose(0, 1).contiguous()
    out = torch.empty_like(by_token)
    arrays = (out.numpy(), by_token.numpy(), cos[0].contiguous().numpy(), sin[0].contiguous().numpy())
    _over_rows(kernels.rotate_rows, kernels.rotate, arrays, grain)
    return out.transpose(0, 1)[None]


def _over_rows(few: Callable[..., None], many: Callable[..., None], arrays: tuple[Any, ...], grain: int) -> None:
    """Call the kernel for few rows, or from ``grain`` numbers on the one that deals them out to the threads."""
    if arrays[0].size < grain:
        run_kernel(few, *arrays, 0, len(arrays[0]))
    else:
        import numba

        run_kernel(
            many, *arrays, 4 * numba.get_num_threads()
        )  # some pieces more than threads, for those that are held up


def _rows(tensor: torch.Tensor) -> np.ndarray:
    """The same memory as [T, width]."""
    rows: np.ndarray = tensor.view(-1, tensor.shape[-1]).numpy()
    return rows
