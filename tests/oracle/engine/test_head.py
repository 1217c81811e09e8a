"""The output layer on reordered weights: the same logits but for rounding, and only where it is wanted and has room."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparkinfer.engine import head as module
from sparkinfer.engine.head import order_head
from tests.oracle.engine import tiny

PLENTY = 1 << 40


@pytest.fixture(autouse=True)
def pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of small models are too small for a gain that can be measured: the first trial wins."""
    times = iter([1.0, 2.0] * 10)
    monkeypatch.setattr(module, "_best_of", lambda forward, tokens: next(times))


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["llama", "gpt2", "cohere", "gemma2", "starcoder2"])
def test_logits_stay_within_rounding(kind: str) -> None:
    model = tiny.model(kind)
    ids = torch.tensor(tiny.prompts((33,)))
    want = model(ids).logits
    assert order_head(model, free_bytes=PLENTY) == model.get_output_embeddings().weight.numel() * 4
    torch.testing.assert_close(model(ids).logits, want, rtol=1e-4, atol=1e-5)
    assert order_head(model, free_bytes=PLENTY) == 0, "once"


@torch.inference_mode()
def test_a_bias_is_kept() -> None:
    model = tiny.model("llama")
    model.lm_head = nn.Linear(64, tiny.VOCAB, bias=True)
    ids = torch.tensor(tiny.prompts((9,)))
    want = model(ids).logits
    assert order_head(model, free_bytes=PLENTY) > 0
    torch.testing.assert_close(model(ids).logits, want, rtol=1e-4, atol=1e-5)


def test_where_memory_is_short_or_it_does_not_pay_or_gives_other_logits_it_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny.model("llama")
    assert order_head(model, free_bytes=3 * model.lm_head.weight.numel() * 4) == 0
    monkeypatch.setattr(module, "_ordered", lambda head: lambda tokens: 1.01 * head(tokens))
    assert order_head(model, free_bytes=PLENTY) == 0
    monkeypatch.undo()
    times = iter([2.0, 1.0])
    monkeypatch.setattr(module, "_best_of", lambda forward, tokens: next(times))
    assert order_head(model, free_bytes=PLENTY) == 0
    assert order_head(tiny.model("llama").to(torch.bfloat16), free_bytes=PLENTY) == 0
