"""Modules that run as one pass over memory: the same numbers, and nothing else is touched."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn
from transformers.models.llama import modeling_llama

from sparkinfer.engine import fused_kernels
from sparkinfer.engine.attention import hook
from sparkinfer.engine.fused import fuse
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


@pytest.mark.parametrize("tokens", [3, 400])
def test_kernels_give_the_same_with_one_thread_and_with_all(tokens: int) -> None:
    numbers = np.random.default_rng(1).normal(0, 30, (tokens, 192)).astype(np.float32)
    gate, up = torch.from_numpy(numbers.copy()), torch.randn(tokens, 192)
    want = nn.functional.silu(gate) * up
    one, all_ = gate.clone().numpy(), gate.clone().numpy()
    fused_kernels.gate_rows(one, up.numpy(), 0, tokens)
    fused_kernels.gate_all(all_, up.numpy(), 3)
    assert np.array_equal(one, all_)
    np.testing.assert_allclose(one, want.numpy(), rtol=1e-5, atol=1e-6)
    hidden, weight = numbers, np.linspace(0.5, 2, 192, dtype=np.float32)
    fused_kernels.norm_rows(one, hidden, weight, 1e-5, 0, tokens)
    fused_kernels.norm(all_, hidden, weight, 1e-5, 3)
    assert np.array_equal(one, all_)
    want = nn.functional.rms_norm(torch.from_numpy(hidden), (192,), torch.from_numpy(weight), 1e-5)
    np.testing.assert_allclose(one, want.numpy(), rtol=1e-5)


@pytest.mark.parametrize("number", [0.0, -0.0, 87.0, 200.0, -87.0, -200.0, 1e30, -1e30, np.inf, np.nan])
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


def test_a_second_call_finds_nothing_to_do() -> None:
    model = tiny.model("llama")
    assert fuse(model) == {"gated_mlp": LAYERS, "rms_norm": 2 * LAYERS + 1, "rotary": 1}
    assert fuse(model) == {"gated_mlp": 0, "rms_norm": 0, "rotary": 1}, "the function is changed once a process"


def test_half_precision_is_left_alone() -> None:
    model: nn.Module = tiny.model("llama").to(torch.bfloat16)
    assert sum(fuse(model).values()) == 0
