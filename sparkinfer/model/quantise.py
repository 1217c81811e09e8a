"""A loaded model's linear layers made integer ones, by the kernel that is fastest on this machine for this model's shapes."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from sparkinfer.errors import UnsupportedModel
from sparkinfer.model.quantised import GROUP, KERNELS, QuantisedLinear

_LOG = logging.getLogger(__name__)
_TRIAL_TOKENS = (16, 256)  # a decode step and a prefill
_TRIALS = 3
_TRIAL_SHAPES = 4
#: Of the largest result: what a kernel may differ by from the same integers multiplied exactly.
_TOLERANCE = {"int8": 0.03, "int4": 0.01}


@dataclass(frozen=True, slots=True)
class _Place:
    """A layer and where it hangs."""

    parent: nn.Module
    name: str
    layer: nn.Linear | Conv1D

    @property
    def weight(self) -> torch.Tensor:
        """``[out, in]``; GPT-2 keeps it the other way round."""
        weight: torch.Tensor = self.layer.weight.detach()
        return weight.t() if isinstance(self.layer, Conv1D) else weight


@torch.inference_mode()
def quantise(model: PreTrainedModel, kind: str, *, device: str, rest: torch.dtype) -> None:
    """Change every linear layer; embeddings, norms and what else has weights become ``rest``.

    Layers are changed one after the other, so that no more than one of them is ever there twice. In 4 bits the output layer keeps
    8, for it chooses the token; layers whose rows do not divide into groups keep 8 as well.

    Args:
        model: on the CPU, in eval mode, in whatever dtype it is stored; changed in place and left on ``device``.
        kind: ``int8 | int4``.
        device: where it will run.
        rest: dtype of everything else.

    Raises:
        UnsupportedModel: it has no linear layer.
    """
    places = list(_places(model))
    if not places:
        raise UnsupportedModel(f"{model.config.model_type} has no linear layers to make {kind}; use another dtype.")
    head = model.get_output_embeddings()
    kinds = {p: "int8" if p.layer is head or p.weight.shape[1] % (2 * GROUP) else kind for p in places}
    kernels = {k: _fastest(k, [p for p in places if kinds[p] == k], device) for k in sorted({*kinds.values()})}
    before = sum(p.numel() * p.element_size() for p in model.parameters())
    for place in places:
        weight = place.weight.to(device, torch.float32).contiguous()
        bias = None if place.layer.bias is None else place.layer.bias.detach().to(device, rest)
        setattr(place.parent, place.name, kernels[kinds[place]](weight, bias))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device, rest)
    model.to(device)
    names = ", ".join(f"{list(kinds.values()).count(k)} {k} by {kernel.kernel}" for k, kernel in kernels.items())
    now = weights_bytes(model)
    _LOG.info("linear layers: %s; weights take %d MiB instead of %d MiB.", names, now // 2**20, before // 2**20)


def weights_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights, integer ones included."""
    floats = sum(p.numel() * p.element_size() for p in model.parameters())
    return floats + sum(m.num_bytes for m in model.modules() if isinstance(m, QuantisedLinear))


def kernel_of(model: nn.Module) -> str | None:
    """The kernel of a quantised model's hidden layers; None where it has none."""
    names = Counter(module.kernel for module in model.modules() if isinstance(module, QuantisedLinear))
    return names.most_common(1)[0][0] if names else None


def _places(model: nn.Module) -> Iterator[_Place]:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in (nn.Linear, Conv1D):
                yield _Place(parent, name, child)


def _fastest(kind: str, places: list[_Place], device: str) -> type[QuantisedLinear]:
    """The right and fastest kernel on the shapes that hold most of these weights."""
    counts = Counter(tuple(place.weight.shape) for place in places)
    largest = sorted(counts, key=lambda shape: -counts[shape] * shape[0] * shape[1])[:_TRIAL_SHAPES]
    seconds: dict[type[QuantisedLinear], float] = {}
    for kernel in KERNELS[kind]["cpu" if device.startswith("cpu") else "cuda"]:
        try:
            seconds[kernel] = sum(counts[shape] * _trial(kernel, kind, shape, device) for shape in largest)
        except (RuntimeError, AttributeError, NotImplementedError, _Wrong) as error:
            _LOG.info("kernel %s is of no use here: %s", kernel.kernel, str(error).splitlines()[0])
    chosen = min(seconds, key=lambda kernel: seconds[kernel])
    _LOG.info(
        "%s kernels in ms: %s; %s is used",
        kind,
        ", ".join(f"{kernel.kernel} {1000 * found:.1f}" for kernel, found in seconds.items()),
        chosen.kernel,
    )
    return chosen


class _Wrong(Exception):
    """A kernel gives other numbers than its integers do."""


def _trial(kernel: type[QuantisedLinear], kind: str, shape: tuple[int, ...], device: str) -> float:
    """Seconds of a decode and a prefill; the numbers are the worst for products that overflow: all of one sign and large."""
    dtype = torch.float32 if device.startswith("cpu") else torch.bfloat16
    generator = torch.Generator().manual_seed(1)
    weight = torch.rand(shape, generator=generator).mul_(0.1).add_(0.9).to(device)
    layer = kernel(weight, None)
    spent = 0.0
    for tokens in _TRIAL_TOKENS:
        rows = torch.rand((tokens, shape[1]), generator=generator).mul_(0.1).add_(0.9).to(device, dtype)
        want, got = rows.float() @ weight.t(), layer(rows).float()
        if not float((want - got).abs().max()) <= _TOLERANCE[kind] * float(want.abs().max()):
            raise _Wrong("its sums overflow")
        spent += _best_of(layer, rows)
    return spent


def _best_of(layer: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> float:
    seconds = []
    for _ in range(_TRIALS):
        start = time.perf_counter()
        layer(rows)
        if rows.is_cuda:
            torch.cuda.synchronize(rows.device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
