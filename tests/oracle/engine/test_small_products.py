"""Our own products of a few rows: the numbers of torch for every size, and only on layers and engines that may have them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sparkinfer.engine import small_products
from sparkinfer.engine.kernel_cache import use_kernel_cache
from sparkinfer.engine.small_products import multiply_few_rows
from tests.oracle.engine import tiny


@pytest.fixture(scope="module")
def multiply() -> Any:
    use_kernel_cache()
    from sparkinfer.engine.small_products_kernel import multiply

    return multiply


@torch.inference_mode()
@pytest.mark.parametrize("out_features", [1, 2, 3, 47, 48, 49, 97, 192])
@pytest.mark.parametrize("with_bias", [False, True])
def test_every_number_of_rows_and_columns_gives_what_torch_gives(
    multiply: Any, out_features: int, with_bias: bool
) -> None:
    torch.manual_seed(out_features)
    layer = nn.Linear(48, out_features, bias=with_bias)
    forward = small_products._with_kernel(layer, multiply, 40)
    for count in (*range(1, 14), 39, 40, 41):
        rows = torch.randn(1, count, 48)
        torch.testing.assert_close(forward(rows), layer(rows), rtol=1e-5, atol=1e-5)
    wide = torch.randn(2, 5, 96)[..., ::2]  # not contiguous, and more dimensions
    torch.testing.assert_close(forward(wide), layer(wide), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize(("in_features", "count"), [(1552, 30), (1552, 21), (48, 771), (576, 130), (40_000, 5)])
def test_long_sums_and_many_rows_are_multiplied_in_parts(multiply: Any, in_features: int, count: int) -> None:
    torch.manual_seed(count)
    layer, rows = nn.Linear(in_features, 50), torch.randn(1, count, in_features)
    got = small_products._with_kernel(layer, multiply, 1000)(rows)
    torch.testing.assert_close(got, layer(rows), rtol=1e-4, atol=1e-4)
    alone = small_products._with_kernel(layer, multiply, 1000)(rows[:, :2])
    assert torch.equal(got[:, :2], alone), "a row's sums do not depend on the others"


def test_a_number_that_is_none_stays_one(multiply: Any) -> None:
    layer = nn.Linear(32, 6)
    rows = torch.zeros(1, 3, 32)
    rows[0, 1, 4] = float("nan")
    with torch.inference_mode():
        out = small_products._with_kernel(layer, multiply, 8)(rows)
    assert out[0, 1].isnan().all()
    assert out[0, 0].isfinite().all()


def test_only_plain_float_layers_are_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_products, "_most_rows", lambda layer, multiply: 64)
    model = tiny.model("llama")
    hooked = model.model.layers[0].mlp.up_proj
    hooked.forward = hooked.forward  # somebody's hook stands before it
    found = multiply_few_rows(model, threads=1)
    assert set(found) == {(64, 64), (32, 64), (96, 64), (64, 96), (tiny.VOCAB, 64)}
    changed = {name for name, module in model.named_modules() if "forward" in vars(module)}
    assert len(changed) == 3 * 7 + 1
    assert "lm_head" in changed
    assert hooked.forward.__func__ is nn.Linear.forward
    assert multiply_few_rows(tiny.model("llama").to(torch.bfloat16), threads=1) == {}


@pytest.mark.parametrize("strict", [False, True])
def test_the_engine_gives_the_same_tokens_with_them_and_a_strict_one_has_none(
    monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    monkeypatch.setattr(small_products, "_most_rows", lambda layer, multiply: 64)
    model, prompts = tiny.model("qwen2"), tiny.prompts((5, 20, 33))  # with biases
    want = [tiny.generated(model, prompt, 8) for prompt in prompts]
    engine = tiny.engine(model, fallback=False, strict=strict)
    has_them = "forward" in vars(model.model.layers[0].self_attn.q_proj)
    assert has_them == (not strict)
    assert tiny.flips(model, prompts, want, tiny.greedy(engine, prompts, 8)) == 0
