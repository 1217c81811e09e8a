"""Linear layers on integer weights: what they hold and how they multiply. Which one a machine gets is chosen in ``quantise.py``.

int8: a scale for each output row of the weights and, where the product is of integers, one for each token, so that no token's
result depends on its neighbours (quantisation by token and row as in LLM.int8(), Dettmers et al. 2022). Channels of the input that are
always large are divided by a factor that their weights take over (SmoothQuant, Xiao et al. 2022).
fp8: floats of 8 bits, scaled the same way. int4: 32 weights share a scale and a zero point; activations stay as they are.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import torch
from torch import nn

_TINY = 1e-30
_FP8_MAX = 448.0  # of e4m3
_keeps_activations: ContextVar[bool] = ContextVar("sparkinfer_keeps_activations", default=False)
#: Weights of one row that share a scale and a zero point in 4 bits.
GROUP = 32


class QuantisedLinear(nn.Module, ABC):
    """``x @ weight.T + bias`` for float ``x [..., in_features]``, without the float weights.

    Args:
        weight: float32 ``[out_features, in_features]`` on the device that it will run on.
        bias: float ``[out_features]``, or None.
        smoothing: float32 ``[in_features]`` that inputs are divided by and weights multiplied with, or None.
    """

    kernel: ClassVar[str]
    #: Whether activations become integers too, which is where large channels do harm.
    rounds_activations: ClassVar[bool] = False
    bias: torch.Tensor | None
    inverse: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, smoothing: torch.Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.register_buffer("inverse", None if smoothing is None else 1.0 / smoothing)
        self._pack(weight.detach() if smoothing is None else weight.detach() * smoothing)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are kept."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self.buffers())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[..., in_features] -> [..., out_features]`` in the dtype of ``hidden``."""
        rows = hidden.reshape(-1, self.in_features)
        if self.inverse is not None:
            rows = rows * self.inverse
        product = self._product if not _keeps_activations.get() else self._float_product
        out = product(rows).to(hidden.dtype)
        if self.bias is not None:
            out += self.bias
        return out.view(*hidden.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """For people."""
        return f"in_features={self.in_features}, out_features={self.out_features}, kernel={self.kernel}"

    @abstractmethod
    def _pack(self, weight: torch.Tensor) -> None:
        """Keep float32 ``[out, in]`` as integers."""

    @abstractmethod
    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        """``[n, in_features] -> [n, out_features]``, without the bias."""

    def _float_product(self, rows: torch.Tensor) -> torch.Tensor:
        """The same without rounding activations; kernels that do not round them have no other."""
        return self._product(rows)


@contextmanager
def kept_activations() -> Iterator[None]:
    """Within it no activation is rounded: slow, and a small difference stays small.

    Where activations are rounded, any difference crosses some step, is as large as a step behind it, and crosses more of them in the next
    layer: two computations that agree in all but the last bit end as far apart as rounding itself is from the floats.
    """
    token = _keeps_activations.set(True)
    try:
        yield
    finally:
        _keeps_activations.reset(token)


class FbgemmLinear(QuantisedLinear):
    """int8 by FBGEMM, for processors that add products of bytes in 32 bits (VNNI).

    Others add two of them in 16 bits and overflow. With activations of 7 bits they would not, at two to three times the speed
    of floats; but of a small model's first tokens only two in three then stay what they are (docs/performance-notes.md).
    """

    kernel = "fbgemm"
    rounds_activations = True

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
        scales = _token_scales(rows)
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        out: torch.Tensor = product(rows.float() / scales, 1.0, 128, self._packed)
        return out.mul_(scales)

    def _float_product(self, rows: torch.Tensor) -> torch.Tensor:
        weight, _ = torch.ops.quantized.linear_unpack(self._packed)
        return nn.functional.linear(rows, weight.dequantize())


class IntegerLinear(QuantisedLinear):
    """int8 by torch's product of integers: oneDNN on a CPU, cuBLAS on a GPU."""

    kernel = "int_mm"
    rounds_activations = True
    weight_t: torch.Tensor
    scales: torch.Tensor

    def _pack(self, weight: torch.Tensor) -> None:
        scales = _row_scales(weight)
        self.register_buffer("weight_t", (weight / scales[:, None]).round_().to(torch.int8).t())
        self.register_buffer("scales", scales)

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        scales = _token_scales(rows)
        rounded = (rows.float() / scales).round_().to(torch.int8)
        if rows.is_cuda and len(rows) <= 16:  # cuBLAS takes more rows only
            rounded = nn.functional.pad(rounded, (0, 0, 0, 17 - len(rows)))
        return torch._int_mm(rounded, self.weight_t)[: len(rows)].float().mul_(scales).mul_(self.scales)

    def _float_product(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(rows, self.weight_t.t().to(rows.dtype)).mul_(self.scales.to(rows.dtype))


class Fp8Linear(QuantisedLinear):
    """fp8 (e4m3) by the product that GPUs from Ada and Hopper on have, with a scale for each row of weights and each token.

    Activations are rounded too, but as floats: a large channel leaves the others their digits.
    """

    kernel = "fp8"
    weight_q: torch.Tensor
    scales: torch.Tensor

    def _pack(self, weight: torch.Tensor) -> None:
        scales = weight.abs().amax(1, keepdim=True).div_(_FP8_MAX).clamp_(min=_TINY)
        self.register_buffer("weight_q", (weight / scales).to(torch.float8_e4m3fn))
        self.register_buffer("scales", scales)

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        scales = rows.abs().amax(1, keepdim=True).float().div_(_FP8_MAX).clamp_(min=_TINY)
        rounded = (rows.float() / scales).to(torch.float8_e4m3fn)
        out: torch.Tensor = torch._scaled_mm(
            rounded, self.weight_q.t(), scale_a=scales, scale_b=self.scales.t(), out_dtype=torch.bfloat16
        )
        return out

    def _float_product(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(rows, self.weight_q.to(rows.dtype) * self.scales.to(rows.dtype))


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
        "cpu": (FbgemmLinear, IntegerLinear, UnpackedLinear),
        "cuda": (IntegerLinear, UnpackedLinear),
    },
    "fp8": {"cpu": (), "cuda": (Fp8Linear,)},
    "int4": {"cpu": (PackedInt4Linear, Unpacked4Linear), "cuda": (Unpacked4Linear,)},
}


def _row_scales(weight: torch.Tensor) -> torch.Tensor:
    """float32 [out]: the largest weight of a row becomes 127."""
    return weight.abs().amax(1).div_(127).clamp_(min=_TINY)


def _token_scales(rows: torch.Tensor) -> torch.Tensor:
    """float32 [n, 1]: the largest activation of a token becomes 127."""
    return rows.abs().amax(1, keepdim=True).float().div_(127).clamp_(min=_TINY)


def _nibbles(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """uint8 [out, in] from 0 to 15, and float32 [out, in / GROUP] scales and lowest values."""
    groups = weight.view(len(weight), -1, GROUP)
    lows, highs = groups.aminmax(dim=-1)
    scales = ((highs - lows) / 15).clamp_(min=_TINY).half().float()  # as they will be kept
    lows = lows.half().float()
    nibbles = ((groups - lows[..., None]) / scales[..., None]).round_().clamp_(0, 15).to(torch.uint8)
    return nibbles.view_as(weight), scales, lows
