"""Modules of a loaded model that run as one pass over memory, where that gives the same numbers.

Between the products of a layer a model makes a temporary for every step of a norm, a gate or a rotary embedding: of 2,048 tokens of a
small model 5 to 12 MB each, which are written and read once more through the memory; of a few tokens it is the calls that cost. No
architecture is known by name: a module or function of the right form is tried on random numbers, and it is changed only if its
answer stays, up to the order of a sum.
"""

from __future__ import annotations

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

Forward = Callable[[torch.Tensor], torch.Tensor]
_TRIAL_TOKENS = 5
_TOLERANCE = 1e-5
_GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_ROTARY = "apply_rotary_pos_emb"
#: Numbers from which on two threads are worth waking.
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
        if "forward" in vars(module):  # somebody's hook stands before it
            continue
        kind, forwards = _candidates(module)
        structure = (type(module), *(type(child) for child in module.children()))
        if structure not in proved:
            proved[structure] = next((name for name, one in forwards.items() if _gives_the_same(module, one)), None)
        if (formula := proved[structure]) is not None:
            module.forward = forwards[formula]
            changed[kind] += 1
    for name in {type(module).__module__ for module in model.modules()}:
        changed["rotary"] += _fuse_rotary(sys.modules[name])
    return changed


def _candidates(module: Any) -> tuple[str, dict[str, Forward]]:
    """What kind of module it may be, and by their formulas the forwards that may take the place of its own."""
    if {name for name, _ in module.named_children()} == _GATED and hasattr(module.gate_proj, "in_features"):
        return "gated_mlp", {"gated": partial(_gated_mlp, module)}
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if "RMSNorm" not in type(module).__name__ or epsilon is None or not isinstance(weight, torch.Tensor):
        return "", {}
    factors = {"weight": weight.detach(), "1 + weight": 1 + weight.detach()}
    return "rms_norm", {name: partial(_rms_norm, one.numpy(), float(epsilon)) for name, one in factors.items()}


def _gives_the_same(module: Any, forward: Forward) -> bool:
    width = module.gate_proj.in_features if hasattr(module, "gate_proj") else len(module.weight)
    tokens = torch.randn((1, _TRIAL_TOKENS, width), generator=torch.Generator().manual_seed(1))
    before = tokens.clone()
    try:
        return _is_near(forward(tokens), module(tokens)) and torch.equal(tokens, before)
    except Exception:  # whatever does not take these calls is another kind of module
        return False


def _is_near(got: torch.Tensor, want: torch.Tensor) -> bool:
    return got.shape == want.shape and float((got - want).abs().max()) <= _TOLERANCE * float(want.abs().max())


def _gated_mlp(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """``down(act(gate(x)) * up(x))``, the product in the place of its first factor."""
    gate, up = module.gate_proj(hidden), module.up_proj(hidden)
    if not isinstance(module.act_fn, nn.SiLU):
        gate = module.act_fn(gate).mul_(up)
    else:
        from sparkinfer.engine.fused_kernels import gate_all, gate_rows

        rows, others = _rows(gate), _rows(up)
        if rows.size < _GRAIN:
            gate_rows(rows, others, 0, len(rows))
        else:
            gate_all(rows, others, _pieces())
    down: torch.Tensor = module.down_proj(gate)
    return down


def _rms_norm(factor: np.ndarray, epsilon: float, hidden: torch.Tensor) -> torch.Tensor:
    """``factor * x / sqrt(mean(x^2) + epsilon)``."""
    from sparkinfer.engine.fused_kernels import norm, norm_rows

    hidden = hidden.contiguous()
    out = torch.empty_like(hidden)
    rows = _rows(hidden)
    if rows.size < _GRAIN:
        norm_rows(_rows(out), rows, factor, epsilon, 0, len(rows))
    else:
        norm(_rows(out), rows, factor, epsilon, _pieces())
    return out


def _fuse_rotary(namespace: Any) -> int:
    """Replace a modelling module's function of rotary embeddings, for the forwards of packed engines and nobody else's."""
    original = getattr(namespace, _ROTARY, None)
    if original is None:
        return 0
    if not hasattr(original, "is_fused"):
        if not _rotates(original):
            return 0
        setattr(namespace, _ROTARY, _with_kernel(original))
    return 1


def _rotates(original: Callable[..., Any]) -> bool:
    generator = torch.Generator().manual_seed(1)
    states = [torch.randn((1, _TRIAL_TOKENS, heads, 8), generator=generator).transpose(1, 2) for heads in (4, 2)]
    angles = [torch.randn((1, _TRIAL_TOKENS, 8), generator=generator) for _ in range(2)]
    try:
        want = original(*states, *angles)
        return all(_is_near(_rotated(one, *angles), other) for one, other in zip(states, want, strict=True))
    except Exception:  # another function of that name
        return False


def _with_kernel(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def apply_rotary_pos_emb(q: Any, k: Any, cos: Any, sin: Any, *others: Any, **named: Any) -> Any:
        if others or named or torch.compiler.is_compiling() or not hook.is_active() or not _fits(q, k, cos):
            return original(q, k, cos, sin, *others, **named)
        return _rotated(q, cos, sin), _rotated(k, cos, sin)

    apply_rotary_pos_emb.is_fused = True  # type: ignore[attr-defined]
    return apply_rotary_pos_emb


def _fits(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor) -> bool:
    """States [1, heads, T, dim] and angles [1, T, dim], float32 on the CPU."""
    same = (1, q.shape[-2], q.shape[-1])
    is_plain = all(one.dtype is torch.float32 and one.device.type == "cpu" for one in (q, k, cos))
    return is_plain and q.dim() == 4 and q.shape[0] == 1 and tuple(cos.shape) == same and k.shape[-2:] == q.shape[-2:]


def _rotated(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """[1, heads, T, dim], lying as the projection before it and the attention behind it have it: token by token."""
    from sparkinfer.engine.fused_kernels import rotate, rotate_rows

    by_token = states[0].transpose(0, 1).contiguous()
    out = torch.empty_like(by_token)
    arrays = (out.numpy(), by_token.numpy(), cos[0].contiguous().numpy(), sin[0].contiguous().numpy())
    if by_token.numel() < _GRAIN:
        rotate_rows(*arrays, 0, len(out))
    else:
        rotate(*arrays, _pieces())
    return out.transpose(0, 1)[None]


def _rows(tensor: torch.Tensor) -> np.ndarray:
    """The same memory as [T, width]."""
    rows: np.ndarray = tensor.view(-1, tensor.shape[-1]).numpy()
    return rows


def _pieces() -> int:
    """One a thread and a few more, for threads that are held up."""
    import numba

    return 4 * int(numba.get_num_threads())
