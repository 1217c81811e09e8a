"""Our own products of a few rows: the numbers of torch for every size, and only on layers and engines that may have them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from sparkinfer.engine import small_products
from sparkinfer.engine.kernel_cache import use_kernel_cache
from sparkinfer.engine.small_products import Products, multiply_few_rows
from tests.oracle.engine import tiny


@pytest.fixture(scope="module")
def multiply() -> Any:
    use_kernel_cache()
    from sparkinfer.engine.small_products_kernel import multiply

    return multiply


def own(layer: nn.Linear, multiply: Any, *, most: int) -> Any:
    """The layer's forward by the kernel."""
    return partial(Products([layer], multiply, [(1, most)]).forward, 0)


@torch.inference_mode()
@pytest.mark.parametrize("out_features", [1, 2, 3, 47, 48, 49, 97, 192])
@pytest.mark.parametrize("with_bias", [False, True])
def test_every_number_of_rows_and_columns_gives_what_torch_gives(
    multiply: Any, out_features: int, with_bias: bool
) -> None:
    torch.manual_seed(out_features)
    layer = nn.Linear(48, out_features, bias=with_bias)
    forward = own(layer, multiply, most=40)
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
    got = own(layer, multiply, most=1000)(rows)
    torch.testing.assert_close(got, layer(rows), rtol=1e-4, atol=1e-4)
    alone = own(layer, multiply, most=1000)(rows[:, :2])
    assert torch.equal(got[:, :2], alone), "a row's sums do not depend on the others"


def test_a_number_that_is_none_stays_one(multiply: Any) -> None:
    layer = nn.Linear(32, 6)
    rows = torch.zeros(1, 3, 32)
    rows[0, 1, 4] = float("nan")
    with torch.inference_mode():
        out = own(layer, multiply, most=8)(rows)
    assert out[0, 1].isnan().all()
    assert out[0, 0].isfinite().all()


@torch.inference_mode()
def test_layers_of_one_input_share_a_call_and_keep_their_bits(multiply: Any) -> None:
    torch.manual_seed(3)
    layers = [nn.Linear(48, width, bias=width == 97) for width in (192, 50, 97)]
    calls: list[int] = []

    def counted(outs: Any, rows: Any, weights: Any) -> None:
        calls.append(len(outs))
        multiply(outs, rows, weights)

    together = Products(layers, counted, [(1, 64), (2, 40), (1, 64)])
    for count, expected in ((1, [1, 1]), (2, [3]), (40, [3]), (41, [1, 1]), (65, [])):
        rows = torch.randn(1, count, 48)
        calls.clear()
        for place, layer in enumerate(layers):
            got, alone = together.forward(place, rows), own(layer, multiply, most=64)(rows)
            torch.testing.assert_close(got, layer(rows), rtol=1e-5, atol=1e-5)
            assert count in (1, 41, 65) or torch.equal(got, alone)
        assert calls == expected


@torch.inference_mode()
def test_who_asks_out_of_turn_gets_the_answer_of_its_own_input(multiply: Any) -> None:
    torch.manual_seed(4)
    layers = [nn.Linear(48, width, bias=False) for width in (48, 49, 50)]
    together = Products(layers, multiply, [(1, 64)] * 3)
    one, other = torch.randn(1, 3, 48), torch.randn(1, 3, 48)
    asked = [(0, one), (1, other), (2, one), (2, other), (0, other), (0, one), (1, other), (1, one), (1, one), (2, one)]
    for place, rows in asked:
        want = layers[place](rows)
        torch.testing.assert_close(together.forward(place, rows), want, rtol=1e-5, atol=1e-5)


def test_queries_keys_and_values_are_one_call_and_so_are_gate_and_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_products, "_served_rows", lambda layer, multiply: (1, 64))
    model = tiny.model("qwen2")
    multiply_few_rows(model, threads=1)
    layer = model.model.layers[0]

    def places(*members: nn.Module) -> list[tuple[int, int]]:
        """By member which products it belongs to, and its place there."""
        return [(id(member.forward.func.__self__), member.forward.args[0]) for member in members]

    attention, mlp = layer.self_attn, layer.mlp
    (q, k, v), (gate, up) = (
        places(attention.q_proj, attention.k_proj, attention.v_proj),
        places(mlp.gate_proj, mlp.up_proj),
    )
    (o,), (down,) = places(attention.o_proj), places(mlp.down_proj)
    assert [q[0], q[1], k[1], v[1]] == [k[0], 0, 1, 2]
    assert (q[0], gate[0], gate[1], up[1]) == (v[0], up[0], 0, 1)
    assert len({q[0], gate[0], o[0], down[0]}) == 4


def test_only_plain_float_layers_are_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_products, "_served_rows", lambda layer, multiply: (1, 64))
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
    monkeypatch.setattr(small_products, "_served_rows", lambda layer, multiply: (1, 64))
    model, prompts = tiny.model("qwen2"), tiny.prompts((5, 20, 33))  # with biases
    want = [tiny.generated(model, prompt, 8) for prompt in prompts]
    engine = tiny.engine(model, fallback=False, strict=strict)
    has_them = "forward" in vars(model.model.layers[0].self_attn.q_proj)
    assert has_them == (not strict)
    assert tiny.flips(model, prompts, want, tiny.greedy(engine, prompts, 8)) == 0
