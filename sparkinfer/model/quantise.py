"""A loaded model's linear layers made integer ones, by the kernel that is fastest on this machine for this model's shapes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from sparkinfer.errors import UnsupportedModel
from sparkinfer.model.quantised import GROUP, KERNELS, QuantisedLinear, UnpackedLinear
from sparkinfer.model.trial import best_of

_LOG = logging.getLogger(__name__)
_TRIAL_TOKENS = (16, 256)  # a decode step and a prefill
_TRIAL_SHAPES = 4
#: How many times the median the largest channel of a layer's input may be.
_OUTLIER = 50.0
#: Of the largest result: what a kernel may differ by from the same integers multiplied exactly.
_TOLERANCE = {"int8": 0.03, "fp8": 0.06, "int4": 0.01}
#: Ordinary text of several kinds.
CALIBRATION = (
    (
        "The package came two days late and one of the cups was broken, but the shop sent a new one at once and asked for nothing back. "
        "The tea itself is excellent: strong, not bitter, and a pound of it lasts for two months. I would buy it again."
    ),
    (
        "Question: Which of these three is a river? A) Danube B) Carpathians C) Baltic. Answer: A. In 2019 its average discharge at the "
        "mouth was 6,486 cubic metres a second, 3.4 % more than the year before."
    ),
    'def total(rows):\n    """Sum of the amounts that are paid."""\n    return sum(row["amount"] for row in rows if row["paid"])\n',
    '{"name": "Maria Keller", "city": "Graz", "orders": [{"id": 1041, "price": 19.99}, {"id": 1077, "price": 5.5}]}',
    (
        "Le train de nuit part \u00e0 vingt-deux heures. \u5546\u54c1\u5f88\u597d\uff0c\u7269\u6d41\u4e5f\u5feb\u3002 "
        "Der Vertrag gilt ab dem ersten Mai."
    ),
)


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
def quantise(
    model: PreTrainedModel, kind: str, *, device: str, rest: torch.dtype, prompts: Sequence[Sequence[int]] = ()
) -> None:
    """Change every linear layer; embeddings, norms and what else has weights become ``rest``.

    The prompts show which channels of a layer's input are large. A layer with one that dwarfs all others keeps its activations.
    Layers are changed one after the other, so that no more than one of them is ever there twice. The output layer is int8 whatever the
    others are, for it chooses the token; so are layers whose sizes do not divide as the kernels of fp8 and int4 need it.

    Args:
        model: on the CPU, in eval mode, in whatever dtype it is stored; changed in place and left on ``device``.
        kind: ``int8 | fp8 | int4``.
        device: where it will run.
        rest: dtype of everything else.
        prompts: token ids of some ordinary text; none: random ids.

    Raises:
        UnsupportedModel: it has no linear layer, or no kernel of that kind runs here.
    """
    places = list(_places(model))
    if not places:
        raise UnsupportedModel(f"{model.config.model_type} has no linear layers to make {kind}; use another dtype.")
    embedding = model.get_input_embeddings().weight
    others = sum(p.numel() for p in model.parameters() if p is not embedding)
    if 2 * sum(p.weight.numel() for p in places if p.layer.weight is not embedding) < others:
        raise UnsupportedModel(
            f"Most weights of {model.config.model_type} are no linear layers (experts in one tensor, for example) and would stay as "
            f"they are: {kind} saves too little. Use bf16, or a model whose layers are linear ones."
        )
    head = model.get_output_embeddings()
    kinds = {p: "int8" if p.layer is head or not _divides(kind, p.weight.shape) else kind for p in places}
    kernels = {k: _fastest(k, [p for p in places if kinds[p] == k], device) for k in sorted({*kinds.values()})}
    largest = _largest_inputs(model, places, prompts) if _round_activations(kernels) else {}
    before = sum(p.numel() * p.element_size() for p in model.parameters())
    used: Counter[str] = Counter()
    for place in places:
        kernel, inputs = kernels[kinds[place]][tuple(place.weight.shape)], largest.get(place)
        if kernel.rounds_activations and inputs is not None and _has_an_outlier(inputs):
            kernel = UnpackedLinear
        used[kernel.kernel] += 1
        weight = place.weight.to(device, torch.float32).contiguous()
        bias = None if place.layer.bias is None else place.layer.bias.detach().to(device, rest)
        smoothing = _smoothing(weight, inputs.to(device)) if kernel.rounds_activations and inputs is not None else None
        setattr(place.parent, place.name, kernel(weight, bias, smoothing))
        place.layer.weight = None  # the list above still holds the layer
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device, rest)
    model.to(device)
    now = weights_bytes(model)
    names = ", ".join(f"{count} by {name}" for name, count in used.items())
    _LOG.info(
        "%s: linear layers %s; weights take %d MiB instead of %d MiB.", kind, names, now // 2**20, before // 2**20
    )


def calibration_ids(folder: Path) -> list[list[int]]:
    """Token ids of :data:`CALIBRATION` by the tokenizer in a model's folder; empty where it has none that loads."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # the text layer says what is wrong with it; here it only chooses factors
        _LOG.info("No tokenizer to calibrate with: %s", error)
        return []
    return [tokenizer(text).input_ids for text in CALIBRATION]


def _largest_inputs(
    model: PreTrainedModel, places: list[_Place], prompts: Sequence[Sequence[int]]
) -> dict[_Place, torch.Tensor]:
    """float32 [in] of each layer: the largest size of each channel of its input over the prompts."""
    known = model.get_input_embeddings().num_embeddings
    if not prompts:
        generator = torch.Generator().manual_seed(1)
        prompts = torch.randint(0, known, (4, 32), generator=generator).tolist()
    context = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    prompts = [[token_id for token_id in prompt if token_id < known][:context] for prompt in prompts]
    found: dict[_Place, torch.Tensor] = {}

    def watch(place: _Place) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def look(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            seen = inputs[0].detach().abs().flatten(0, -2).amax(0).float()
            found[place] = torch.maximum(found[place], seen) if place in found else seen

        return look

    hooks = [place.layer.register_forward_pre_hook(watch(place)) for place in places]
    try:
        for prompt in filter(None, prompts):
            model(input_ids=torch.tensor([prompt], device=model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _round_activations(kernels: dict[str, dict[tuple[int, ...], type[QuantisedLinear]]]) -> bool:
    return any(kernel.rounds_activations for of_kind in kernels.values() for kernel in of_kind.values())


def _has_an_outlier(inputs: torch.Tensor) -> bool:
    return bool(inputs.max() > _OUTLIER * inputs.median().clamp_(min=1e-12))


def _smoothing(weight: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Factors that make channels of inputs and of weights alike large: SmoothQuant with a half."""
    of_weight = weight.abs().amax(0).clamp_(min=1e-5)
    return (inputs.clamp(min=1e-5) / of_weight).sqrt_().clamp_(min=1e-5)


def weights_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights in memory, integer ones included; those that stay elsewhere are on the meta device."""
    floats = sum(p.numel() * p.element_size() for p in model.parameters() if p.device.type != "meta")
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


def _divides(kind: str, shape: torch.Size) -> bool:
    return all(size % 16 == 0 for size in shape) if kind == "fp8" else shape[1] % (2 * GROUP) == 0


def _fastest(kind: str, places: list[_Place], device: str) -> dict[tuple[int, ...], type[QuantisedLinear]]:
    """By shape the kernel that is right and, on the shapes that hold most of these weights, the fastest; others where it cannot serve one."""
    counts = Counter(tuple(place.weight.shape) for place in places)
    shapes = sorted(counts, key=lambda shape: -counts[shape] * shape[0] * shape[1])
    kernels = KERNELS[kind]["cpu" if device.startswith("cpu") else "cuda"]
    trials = {kernel: _trials(kernel, kind, shapes[:_TRIAL_SHAPES], device) for kernel in kernels}
    best = {
        shape: min((t[shape] for t in trials.values() if shape in t), default=0.0) for shape in shapes[:_TRIAL_SHAPES]
    }

    def seconds(kernel: type[QuantisedLinear]) -> float:
        return sum(counts[shape] * trials[kernel].get(shape, other) for shape, other in best.items())

    in_order = sorted((kernel for kernel in kernels if trials[kernel]), key=seconds)
    chosen: dict[tuple[int, ...], type[QuantisedLinear]] = {}
    for shape in shapes:
        serving = (
            k for k in in_order if shape in trials[k] or (shape not in best and _trials(k, kind, [shape], device))
        )
        if (kernel := next(serving, None)) is None:
            raise UnsupportedModel(f"No kernel for dtype {kind} runs on {device}; use int8, which runs everywhere.")
        chosen[shape] = kernel
    _LOG.info("%s kernels in ms: %s", kind, ", ".join(f"{k.kernel} {1000 * seconds(k):.1f}" for k in in_order))
    return chosen


def _trials(
    kernel: type[QuantisedLinear], kind: str, shapes: list[tuple[int, ...]], device: str
) -> dict[tuple[int, ...], float]:
    """Seconds for each of these shapes that the kernel serves."""
    found = {}
    for shape in shapes:
        try:
            found[shape] = _trial(kernel, kind, shape, device)
        except (RuntimeError, AttributeError, NotImplementedError, _Wrong) as error:
            _LOG.info(
                "kernel %s does not serve %s here: %s", kernel.kernel, shape, (str(error).splitlines() or [""])[0]
            )
    return found


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
        spent += best_of(layer, rows)
    return spent
