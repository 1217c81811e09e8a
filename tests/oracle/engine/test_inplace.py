"""Modules that write into their own temporaries: the same bits, and nothing else is touched."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparkinfer.engine.inplace import work_in_place
from tests.oracle.engine import tiny

LAYERS = 3
MLPS = {"llama": LAYERS, "mistral": LAYERS, "qwen2": LAYERS, "gemma2": LAYERS, "stablelm": LAYERS, "gpt2": 0, "phi3": 0}


@torch.inference_mode()
@pytest.mark.parametrize("kind", tiny.PACKED)
def test_logits_stay_the_same_bits(kind: str) -> None:
    model = tiny.model(kind)
    ids = torch.tensor(tiny.prompts((33,)))
    want = model(ids).logits
    changed = work_in_place(model)
    assert torch.equal(model(ids).logits, want)
    if kind in MLPS:
        assert changed["gated_mlp"] == MLPS[kind]


def test_the_norms_of_a_llama_work_in_place_and_those_of_a_gemma_do_not() -> None:
    assert work_in_place(tiny.model("llama"))["rms_norm"] == 2 * LAYERS + 1
    assert work_in_place(tiny.model("gemma2"))["rms_norm"] == 0  # its weight counts from one


def test_a_module_with_the_right_children_and_another_formula_is_left_alone() -> None:
    model = tiny.model("llama")
    mlp = type(model.model.layers[0].mlp)

    class Doubled(mlp):  # type: ignore[misc, valid-type]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    model.model.layers[1].mlp.__class__ = Doubled
    assert work_in_place(model)["gated_mlp"] == LAYERS - 1


def test_a_second_call_finds_nothing_to_do() -> None:
    model = tiny.model("llama")
    assert sum(work_in_place(model).values()) > 0
    assert sum(work_in_place(model).values()) == 0


def test_half_precision_is_left_alone() -> None:
    model: nn.Module = tiny.model("llama").to(torch.bfloat16)
    assert sum(work_in_place(model).values()) == 0
