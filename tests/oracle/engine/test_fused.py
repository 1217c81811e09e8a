"""Modules that run as one pass over memory: the same numbers, and nothing else is touched."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn
from transformers.models.llama import modeling_llama

from sparkinfer.engine import fused_kernels, selfcheck, small_products
from sparkinfer.engine.attention import hook
from sparkinfer.engine.fused import fuse
from sparkinfer.errors import SelfCheckFailed
from tests.oracle.engine import tiny

LAYERS = 3
MLPS = {"llama": LAYERS, "mistral": LAYERS, "qwen2": LAYERS, "gemma2": LAYERS, "stablelm": LAYERS, "gpt2": 0, "phi3": 0}


@torch.inference_mode()
@pytest.mark.parametrize("kind", tiny.PACKED)
def test_logits_stay_the_same(kind: str) -> None:
    model = tiny.model(kind)
    ids = torch.tensor(tiny.prompts((33,)))
    want = model(ids).logits
    changed = fuse(model)
    assert torch.allclose(model(ids).logits, want, rtol=0, atol=1e-5 * float(want.abs().max()))
    if kind in MLPS:
        assert changed["gated_mlp"] == MLPS[kind]


def test_norms_of_both_formulas_are_found() -> None:
    assert fuse(tiny.model("llama"))["rms_norm"] == 2 * LAYERS + 1
    assert fuse(tiny.model("gemma2"))["rms_norm"] == 4 * LAYERS + 1  # its weight counts from one


def test_a_rotary_embedding_is_replaced_within_packed_forwards_only() -> None:
    model = tiny.model("llama")
    assert fuse(model)["rotary"] == 1
    rotary = modeling_llama.apply_rotary_pos_emb
    q, k = (torch.randn((1, 40, heads, 16)).transpose(1, 2) for heads in (4, 2))
    cos, sin = torch.randn((1, 40, 16)), torch.randn((1, 40, 16))
    want = rotary.__wrapped__(q, k, cos, sin)
    q.requires_grad_()
    assert rotary(q, k, cos, sin)[0].requires_grad, "outside of them it is transformers' own"
    with torch.no_grad(), hook.backend(Mock()):
        got = rotary(q, k, cos, sin)
    for one, other in zip(got, want, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
        assert one[0].transpose(0, 1).is_contiguous(), "attention takes it as it lies"


def test_a_function_of_the_same_name_and_another_formula_is_left_alone() -> None:
    assert fuse(tiny.model("cohere"))["rotary"] == 0  # turns neighbours, not halves


@pytest.mark.parametrize(("tokens", "width"), [(3, 192), (400, 192), (5, 517), (7, 1030), (2, 9)])
def test_kernels_give_the_same_with_one_thread_and_with_all(tokens: int, width: int) -> None:
    numbers = np.random.default_rng(1).normal(0, 30, (tokens, width)).astype(np.float32)
    gate, up = torch.from_numpy(numbers.copy()), torch.randn(tokens, width)
    want = nn.functional.silu(gate) * up
    one, all_ = gate.clone().numpy(), gate.clone().numpy()
    fused_kernels.gate_rows(one, up.numpy(), 0, tokens)
    fused_kernels.gate(all_, up.numpy(), 3)
    assert np.array_equal(one, all_)
    np.testing.assert_allclose(one, want.numpy(), rtol=1e-5, atol=1e-6)
    hidden, weight = numbers, np.linspace(0.5, 2, width, dtype=np.float32)
    fused_kernels.norm_rows(one, hidden, weight, 1e-5, 0, tokens)
    fused_kernels.norm(all_, hidden, weight, 1e-5, 3)
    assert np.array_equal(one, all_)
    want = nn.functional.rms_norm(torch.from_numpy(hidden), (width,), torch.from_numpy(weight), 1e-5)
    np.testing.assert_allclose(one, want.numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    "number", [0.0, -0.0, 87.0, 200.0, -87.0, -200.0, 1e30, -1e30, 1e38, -1e38, np.inf, -np.inf, np.nan]
)
def test_a_gate_of_any_size_is_that_of_torch(number: float) -> None:
    gate = np.full((1, 32), number, np.float32)
    want = nn.functional.silu(torch.from_numpy(gate.copy())).numpy()
    fused_kernels.gate_rows(gate, np.ones_like(gate), 0, 1)
    np.testing.assert_allclose(gate, want, rtol=1e-5, atol=1e-7)


def test_a_module_with_the_right_children_and_another_formula_is_left_alone() -> None:
    model = tiny.model("llama")
    mlp = type(model.model.layers[0].mlp)

    class Doubled(mlp):  # type: ignore[misc, valid-type]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    model.model.layers[1].mlp.__class__ = Doubled
    assert fuse(model)["gated_mlp"] == LAYERS - 1


class ScaledRMSNorm(nn.Module):
    """A norm as Gemma 3n has it: one type, with and without a weight, and some with a limit."""

    def __init__(self, width: int, *, with_scale: bool = True, limit: float | None = None) -> None:
        super().__init__()
        self.eps, self.limit = 1e-6, limit
        if with_scale:
            self.weight = nn.Parameter(torch.linspace(0.5, 2, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out = nn.functional.rms_norm(hidden, hidden.shape[-1:], getattr(self, "weight", None), self.eps)
        return out if self.limit is None else out.clamp(-self.limit, self.limit)


@torch.inference_mode()
def test_modules_of_one_type_with_other_settings_or_more_inputs_are_other_modules() -> None:
    class GatedRMSNorm(ScaledRMSNorm):
        def forward(self, hidden: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(hidden if gate is None else hidden * gate)

    model = tiny.model("llama")
    norms = [ScaledRMSNorm(64), ScaledRMSNorm(64, with_scale=False), ScaledRMSNorm(64, limit=0.5), GatedRMSNorm(64)]
    model.extra = nn.ModuleList(norms).requires_grad_(False)
    assert fuse(model)["rms_norm"] == 2 * LAYERS + 1 + 1
    assert ["forward" in vars(norm) for norm in norms] == [True, False, False, False]


@torch.inference_mode()
def test_the_gates_of_a_llama_are_fused_and_a_limit_shows() -> None:
    model = tiny.model("llama")
    mlp = type(model.model.layers[0].mlp)

    class Limited(mlp):  # type: ignore[misc, valid-type]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down_proj(self.act_fn(self.gate_proj(x)).clamp(max=40) * self.up_proj(x))

    model.model.layers[1].mlp.__class__ = Limited
    assert fuse(model)["gated_mlp"] == LAYERS - 1
    assert model.model.layers[0].mlp.forward.args[1], "by the kernel of a silu"


def test_what_fails_its_self_check_is_given_back_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str:
        raise SelfCheckFailed("other logits")

    monkeypatch.setattr(small_products, "_served_rows", lambda layer, multiply: (1, 64))
    monkeypatch.setattr(selfcheck, "check", fails)
    model = tiny.model("llama")
    engine = tiny.engine(model, fallback=True)
    assert engine.info.label.startswith("static")
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_second_call_finds_nothing_to_do() -> None:
    model = tiny.model("llama")
    assert fuse(model) == {"gated_mlp": LAYERS, "rms_norm": 2 * LAYERS + 1, "rotary": 1}
    assert fuse(model) == {"gated_mlp": 0, "rms_norm": 0, "rotary": 1}, "the function is changed once a process"


def test_half_precision_is_left_alone() -> None:
    model: nn.Module = tiny.model("llama").to(torch.bfloat16)
    assert sum(fuse(model).values()) == 0
