"""Integer linear layers: the numbers that their integers give, whatever stands beside a token."""

from __future__ import annotations

import pytest
import torch

from sparkinfer.model.quantised import KERNELS, QuantisedLinear, kept_activations

OUT, IN = 96, 128
ALL = sorted(
    {kernel for kinds in KERNELS.values() for some in kinds.values() for kernel in some}, key=lambda k: k.kernel
)
#: What rounding may cost: a token's product with both sides rounded, and with the weights alone.
ROUNDED = {"fp8": (0.06, 0.045), "int4pack": (0.13, 0.13), "unpacked4": (0.13, 0.13)}
INT8 = [kernel for kernel in ALL if kernel in KERNELS["int8"]["cpu"]]


def weight() -> torch.Tensor:
    return torch.randn((OUT, IN), generator=torch.Generator().manual_seed(3))


def tokens(count: int) -> torch.Tensor:
    """Rows of very different size."""
    generator = torch.Generator().manual_seed(4)
    return torch.randn((count, IN), generator=generator) * torch.logspace(-2, 2, count)[:, None]


def made(kernel: type[QuantisedLinear], bias: torch.Tensor | None = None) -> QuantisedLinear:
    try:
        ones = kernel(torch.ones((OUT, IN)), None)(torch.ones((1, IN)))
    except (RuntimeError, AttributeError) as error:
        pytest.skip(f"this torch has no {kernel.kernel}: {error}")
    if float(ones.min()) < 0.99 * IN:
        pytest.skip("this processor adds products of bytes in 16 bits")
    return kernel(weight(), bias)


@pytest.mark.parametrize("kernel", ALL, ids=lambda k: k.kernel)
@torch.inference_mode()
def test_each_kernel_is_near_the_float_product_token_by_token(kernel: type[QuantisedLinear]) -> None:
    layer, rows = made(kernel, torch.arange(OUT).float()), tokens(20)
    want = rows @ weight().t() + torch.arange(OUT)
    got = layer(rows)
    difference = (got - want).norm(dim=1) / (want - torch.arange(OUT)).norm(dim=1)
    assert float(difference.max()) < ROUNDED.get(kernel.kernel, (0.02, 0.01))[0], difference


@pytest.mark.parametrize("kernel", ALL, ids=lambda k: k.kernel)
@torch.inference_mode()
def test_a_token_does_not_depend_on_its_neighbours(kernel: type[QuantisedLinear]) -> None:
    layer, rows = made(kernel), tokens(33)
    together = layer(rows)
    alone = torch.cat([layer(row[None]) for row in rows])
    # fp8 gives its answer in bf16, whose last bit another order of the same sum may turn.
    allowed = 1e-3 if kernel.kernel == "fp8" else 1e-5
    assert float(((together - alone).norm(dim=1) / alone.norm(dim=1)).max()) < allowed


@pytest.mark.parametrize("kernel", INT8, ids=lambda k: k.kernel)
@torch.inference_mode()
def test_smoothing_keeps_the_product_and_saves_the_small_channels_from_a_large_one(
    kernel: type[QuantisedLinear],
) -> None:
    made(kernel)
    rows = tokens(20)
    rows[:, 7] *= 1000
    large = rows.abs().amax(0)
    want = rows @ weight().t()
    smooth = kernel(weight(), None, (large / weight().abs().amax(0)).sqrt())
    plain = kernel(weight(), None)
    others = want - rows[:, 7:8] * weight()[:, 7]
    off = [float(((layer(rows) - want).norm(dim=1) / others.norm(dim=1)).median()) for layer in (plain, smooth)]
    assert off[1] < off[0] if kernel.rounds_activations else off[1] < 2 * off[0]


@pytest.mark.parametrize("kernel", ALL, ids=lambda k: k.kernel)
@torch.inference_mode()
def test_with_kept_activations_only_the_weights_are_rounded(kernel: type[QuantisedLinear]) -> None:
    layer, rows = made(kernel), tokens(20)
    with kept_activations():
        kept, exact = layer(rows), layer(torch.eye(IN)).t()
    torch.testing.assert_close(kept, rows @ exact.t(), rtol=1e-3, atol=1e-3)
    want = rows @ weight().t()
    assert float(((kept - want).norm(dim=1) / want.norm(dim=1)).max()) < ROUNDED.get(kernel.kernel, (0.02, 0.01))[1]


@pytest.mark.parametrize("kernel", INT8, ids=lambda k: k.kernel)
@torch.inference_mode()
def test_shapes_and_dtypes_are_those_of_a_linear_layer(kernel: type[QuantisedLinear]) -> None:
    layer = made(kernel)
    assert (layer.in_features, layer.out_features) == (IN, OUT)
    for shape in ((IN,), (1, IN), (2, 3, IN)):
        assert layer(torch.ones(shape)).shape == (*shape[:-1], OUT)
    assert layer(torch.ones((2, IN), dtype=torch.bfloat16)).dtype is torch.bfloat16
    assert layer(torch.zeros((2, IN))).abs().max() == 0
    assert OUT * IN <= layer.num_bytes < 1.2 * OUT * IN


def test_four_bits_take_five_eighths_of_a_byte() -> None:
    for kernel in KERNELS["int4"]["cpu"]:
        layer = made(kernel)
        assert layer.num_bytes <= OUT * IN * 0.76
