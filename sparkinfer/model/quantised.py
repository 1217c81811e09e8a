"""Linear layers on integer weights: what they hold and how they multiply. Which one a machine gets is chosen in ``quantise.py``.

int8: a scale for each output row of the weights and, where the product is of integers, one for each token, so that no token's
result depends on its neighbours (dynamic quantisation by token as in LLM.int8(), Dettmers et al. 2022, without its outliers).
int4: 32 weights share a scale and a zero point; activations stay as they are.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import torch
from torch import nn

_TINY = 1e-30
#: Weights of one row that share a scale and a zero point in 4 bits.
GROUP = 32


class QuantisedLinear(nn.Module):
    """``x @ weight.T + bias`` for float ``x [..., in_features]``, without the float weights.

    Args:
        weight: float32 ``[out_features, in_features]`` on the device that it will run on.
        bias: float ``[out_features]``, or None.
    """

    kernel: ClassVar[str]
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self._pack(weight.detach())

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are kept."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self.buffers())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[..., in_features] -> [..., out_features]`` in the dtype of ``hidden``."""
        rows = hidden.reshape(-1, self.in_features)
        out = self._product(rows).to(hidden.dtype)
        if self.bias is not None:
            out += self.bias
        return out.view(*hidden.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """For people."""
        return f"in_features={self.in_features}, out_features={self.out_features}, kernel={self.kernel}"

    def _pack(self, weight: torch.Tensor) -> None:
        raise NotImplementedError

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        """``[n, in_features] -> [n, out_features]``, without the bias."""
        raise NotImplementedError


class FbgemmLinear(QuantisedLinear):
    """int8 by FBGEMM, which has products of bytes for AVX2 and for VNNI.

    Without VNNI two products are added in 16 bits, where 8-bit activations would overflow: they take 7 bits there.
    """

    kernel = "fbgemm"
    #: Largest activation.
    levels: ClassVar[int] = 63

    def _pack(self, weight: torch.Tensor) -> None:
        scales = _row_scales(weight)
        zeros = torch.zeros(len(scales), dtype=torch.long)
        before, torch.backends.quantized.engine = torch.backends.quantized.engine, "fbgemm"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch is going to move these tensors to another package
                quantised = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
                self._packed: Any = torch.ops.quantized.linear_prepack(quantised, None)
        finally:
            torch.backends.quantized.engine = before

    @property
    def num_bytes(self) -> int:
        """A byte a weight and a scale a row."""
        return self.out_features * (self.in_features + 8) + super().num_bytes

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        scales = _token_scales(rows, self.levels)
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        out: torch.Tensor = product(rows.float() / scales, 1.0, self.levels + 1, self._packed)
        return out.mul_(scales)


class FullRangeFbgemmLinear(FbgemmLinear):
    """The same with 8-bit activations, for processors that add the products in 32 bits."""

    kernel = "fbgemm8"
    levels = 127


class IntegerLinear(QuantisedLinear):
    """int8 by torch's product of integers: oneDNN on a CPU, cuBLAS on a GPU."""

    kernel = "int_mm"
    weight_t: torch.Tensor
    scales: torch.Tensor

    def _pack(self, weight: torch.Tensor) -> None:
        scales = _row_scales(weight)
        self.register_buffer("weight_t", (weight / scales[:, None]).round_().to(torch.int8).t())
        self.register_buffer("scales", scales)

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        scales = _token_scales(rows, 127)
        rounded = (rows.float() / scales).round_().to(torch.int8)
        if rows.is_cuda and len(rows) <= 16:  # cuBLAS takes more rows only
            rounded = nn.functional.pad(rounded, (0, 0, 0, 17 - len(rows)))
        return torch._int_mm(rounded, self.weight_t)[: len(rows)].float().mul_(scales).mul_(self.scales)


class UnpackedLinear(QuantisedLinear):
    """int8 weights made floats for each product: saves memory, not time; runs everywhere."""

    kernel = "unpacked"
    weight_q: torch.Tensor
    scales: torch.Tensor

    def _pack(self, weight: torch.Tensor) -> None:
        scales = _row_scales(weight)
        self.register_buffer("weight_q", (weight / scales[:, None]).round_().to(torch.int8))
        self.register_buffer("scales", scales)

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(rows, self.weight_q.to(rows.dtype)).mul_(self.scales.to(rows.dtype))


class Unpacked4Linear(QuantisedLinear):
    """int4 weights, two a byte, made floats for each product: saves memory, not time; runs everywhere."""

    kernel = "unpacked4"
    pairs: torch.Tensor
    scales: torch.Tensor
    lows: torch.Tensor

    def _pack(self, weight: torch.Tensor) -> None:
        nibbles, scales, lows = _nibbles(weight)
        half = self.in_features // 2  # low halves of the bytes: the first half of the columns
        self.register_buffer("pairs", nibbles[:, :half] | nibbles[:, half:] << 4)
        self.register_buffer("scales", scales.to(torch.float16))
        self.register_buffer("lows", lows.to(torch.float16))

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        weight = torch.empty(self.out_features, self.in_features, dtype=rows.dtype, device=rows.device)
        half = self.in_features // 2
        weight[:, :half], weight[:, half:] = self.pairs & 15, self.pairs >> 4
        groups = weight.view(self.out_features, -1, GROUP)
        groups.mul_(self.scales[..., None]).add_(self.lows[..., None])
        return nn.functional.linear(rows, weight)


class PackedInt4Linear(QuantisedLinear):
    """int4 by torch's product of floats with packed nibbles on a CPU."""

    kernel = "int4pack"
    packed: torch.Tensor
    scales_and_zeros: torch.Tensor

    def _pack(self, weight: torch.Tensor) -> None:
        nibbles, scales, lows = _nibbles(weight)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(nibbles.to(torch.int32), 1)
        self.register_buffer("packed", packed)
        middle = lows + 8 * scales  # the operator counts from the middle of the sixteen values
        self.register_buffer("scales_and_zeros", torch.stack([scales, middle], -1).transpose(0, 1).contiguous())

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        product = torch.ops.aten._weight_int4pack_mm_for_cpu
        out: torch.Tensor = product(rows.contiguous(), self.packed, GROUP, self.scales_and_zeros)
        return out


#: Class of dtype -> kernels on a CPU and on a GPU, any of which may lack its operator on a machine.
KERNELS: dict[str, dict[str, tuple[type[QuantisedLinear], ...]]] = {
    "int8": {
        "cpu": (FullRangeFbgemmLinear, FbgemmLinear, IntegerLinear, UnpackedLinear),
        "cuda": (IntegerLinear, UnpackedLinear),
    },
    "int4": {"cpu": (PackedInt4Linear, Unpacked4Linear), "cuda": (Unpacked4Linear,)},
}


def _row_scales(weight: torch.Tensor) -> torch.Tensor:
    """float32 [out]: the largest weight of a row becomes 127."""
    return weight.abs().amax(1).div_(127).clamp_(min=_TINY)


def _token_scales(rows: torch.Tensor, levels: int) -> torch.Tensor:
    """float32 [n, 1]: the largest activation of a token becomes ``levels``."""
    return rows.abs().amax(1, keepdim=True).float().div_(levels).clamp_(min=_TINY)


def _nibbles(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """uint8 [out, in] from 0 to 15, and float32 [out, in / GROUP] scales and lowest values."""
    groups = weight.view(len(weight), -1, GROUP)
    lows, highs = groups.aminmax(dim=-1)
    scales = ((highs - lows) / 15).clamp_(min=_TINY).half().float()  # as they will be kept
    lows = lows.half().float()
    nibbles = ((groups - lows[..., None]) / scales[..., None]).round_().clamp_(0, 15).to(torch.uint8)
    return nibbles.view_as(weight), scales, lows
