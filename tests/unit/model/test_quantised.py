"""Integer linear layers: the numbers that their integers give, whatever stands beside a token."""

from __future__ import annotations

import pytest
import torch

from sparkinfer.model.quantised import KERNELS, FbgemmLinear, QuantisedLinear

OUT, IN = 96, 128
ALL = sorted(
    {kernel for kinds in KERNELS.values() for some in kinds.values() for kernel in some}, key=lambda k: k.kernel
)
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
    assert float(difference.max()) < (0.13 if "4" in kernel.kernel else 0.03), difference


@pytest.mark.parametrize("kernel", ALL, ids=lambda k: k.kernel)
@torch.inference_mode()
def test_a_token_does_not_depend_on_its_neighbours(kernel: type[QuantisedLinear]) -> None:
    layer, rows = made(kernel), tokens(33)
    together = layer(rows)
    alone = torch.cat([layer(row[None]) for row in rows])
    assert float(((together - alone).norm(dim=1) / alone.norm(dim=1)).max()) < 1e-5


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


@torch.inference_mode()
def test_seven_bits_never_overflow_without_vnni() -> None:
    layer = FbgemmLinear(torch.ones((OUT, IN)), None)
    rows = torch.ones((4, IN)) * torch.tensor([1.0, -1.0, 100.0, -1e-3])[:, None]
    torch.testing.assert_close(layer(rows), rows @ torch.ones((IN, OUT)), rtol=1e-5, atol=1e-6)


def test_four_bits_take_five_eighths_of_a_byte() -> None:
    for kernel in KERNELS["int4"]["cpu"]:
        layer = made(kernel)
        assert layer.num_bytes <= OUT * IN * 0.76
