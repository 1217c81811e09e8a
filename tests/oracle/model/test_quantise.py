"""Whole models on integer weights: loaded from a folder, checked by the engine, labelled in every row, and no larger than said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.create import create_engine
from sparkinfer.errors import UnsupportedModel
from sparkinfer.model import load, memory
from sparkinfer.model import quantise as quantise_module
from sparkinfer.model.quantise import kernel_of, quantise, weights_bytes
from sparkinfer.model.quantised import KERNELS, Fp8Linear, QuantisedLinear, UnpackedLinear
from tests.oracle.engine import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny.model("llama").to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_folder_is_loaded_layer_by_layer_and_takes_what_the_headers_say(folder: Path, dtype: str) -> None:
    model = load(folder, dtype=dtype)
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    quantised = [module for module in model.modules() if isinstance(module, QuantisedLinear)]
    assert not linear
    assert len(quantised) == 3 * 7 + 1
    assert model.dtype is torch.float32
    assert kernel_of(model) in {kernel.kernel for kernel in KERNELS[dtype]["cpu"]}
    said = memory.folder_weights_bytes(folder, dtype=dtype)
    assert weights_bytes(model) == pytest.approx(said, rel=0.25)  # scales of rows this short count
    assert said < memory.folder_weights_bytes(folder, dtype="bf16")


def test_in_four_bits_the_output_layer_keeps_eight(folder: Path) -> None:
    model = load(folder, dtype="int4")
    assert model.lm_head.kernel in {kernel.kernel for kernel in KERNELS["int8"]["cpu"]}


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2", "qwen3", "opt"])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_the_engine_packs_quantised_models_and_gives_what_each_prompt_gives_alone(kind: str, dtype: str) -> None:
    model = tiny.model(kind)
    quantise(model, dtype, device="cpu", rest=torch.float32)
    engine, prompts = tiny.engine(model, dtype=dtype, fallback=False), tiny.prompts((3, 18, 37, 1))
    assert engine.info.label == f"paged/cpu-numba/{dtype}-{kernel_of(model)}"
    together = tiny.greedy(engine, prompts, 6)
    alone = [tiny.greedy(engine, [prompt], 6)[0] for prompt in prompts]
    same = sum(one == other for one, other in zip(together, alone, strict=True))
    assert same >= len(prompts) - 1, "but for a step of an integer that rounding has moved"


def test_fp8_needs_a_gpu_that_multiplies_it(folder: Path) -> None:
    with pytest.raises(UnsupportedModel, match="fp8 runs on cpu; use int8"):
        load(folder, dtype="fp8")


@torch.inference_mode()
def test_fp8_weights_give_what_the_floats_give_but_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch emulates the product on a CPU: slow, and enough to see scales, sizes and the self-check."""
    monkeypatch.setitem(KERNELS["fp8"], "cpu", (Fp8Linear,))
    layer, rows = torch.nn.Linear(64, 96), torch.randn((50, 64), generator=torch.Generator().manual_seed(1))
    rounded = Fp8Linear(layer.weight.detach(), layer.bias.detach())(rows)
    assert float((layer(rows) - rounded).std() / rounded.std()) < 0.05  # three bits of mantissa, on both sides
    plain, model = tiny.model("llama"), tiny.model("llama")
    quantise(model, "fp8", device="cpu", rest=torch.float32)
    assert kernel_of(model) == "fp8"
    assert model.lm_head.kernel in {kernel.kernel for kernel in KERNELS["int8"]["cpu"]}
    ids = torch.tensor([tiny.prompts((40,))[0]])
    want, got = plain(ids).logits[0], model(ids).logits[0]
    assert float((want - got).abs().mean()) < 0.3 * float(want.std())  # int8 0.06, int4 0.39: random layers amplify
    engine = tiny.engine(model, dtype="fp8", fallback=False)
    assert engine.info.label == "paged/cpu-numba/fp8-fp8"
    assert all(len(tokens) == 4 for tokens in tiny.greedy(engine, tiny.prompts((3, 18)), 4))


def test_only_right_kernels_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Overflows(UnpackedLinear):
        kernel = "overflows"

        def _product(self, rows: torch.Tensor) -> torch.Tensor:
            return super()._product(rows).clamp_(max=1.0)

    monkeypatch.setitem(KERNELS["int8"], "cpu", (Overflows, UnpackedLinear))
    model = tiny.model("llama")
    quantise(model, "int8", device="cpu", rest=torch.float32)
    assert kernel_of(model) == "unpacked"


def test_a_shape_that_a_kernel_cannot_serve_gets_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whose product of integers wants sizes that eight divides: a gate of one column, and a head of an odd vocabulary."""

    class OfEight(UnpackedLinear):
        kernel = "of_eight"

        def _product(self, rows: torch.Tensor) -> torch.Tensor:
            if self.weight_q.shape[0] % 8:
                raise RuntimeError("self.size(1) and mat2.size(1) have to be divided by 8")
            return super()._product(rows)

    monkeypatch.setitem(KERNELS["int8"], "cpu", (OfEight, UnpackedLinear))
    monkeypatch.setattr(quantise_module, "best_of", lambda layer, rows: 1.0 + isinstance(layer, OfEight) * -0.5)
    model = tiny.model("llama")
    model.model.layers[0].mlp.shared_expert_gate = torch.nn.Linear(64, 1)
    quantise(model, "int8", device="cpu", rest=torch.float32)
    kernels = {name: module.kernel for name, module in model.named_modules() if isinstance(module, QuantisedLinear)}
    others = {name for name, kernel in kernels.items() if kernel != "of_eight"}
    assert others == {"model.layers.0.mlp.shared_expert_gate"}
    assert kernel_of(model) == "of_eight"


def test_a_model_whose_experts_would_stay_as_they_are_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="Most weights of mixtral are no linear layers"):
        quantise(tiny.model("mixtral", intermediate_size=512), "int8", device="cpu", rest=torch.float32)


def test_a_model_without_linear_layers_is_refused() -> None:
    model = tiny.model("llama")
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(parent, name, torch.nn.Identity())
    with pytest.raises(UnsupportedModel, match="no linear layers"):
        quantise(model, "int8", device="cpu", rest=torch.float32)


def test_the_dtype_named_in_a_spec_reaches_the_engine(folder: Path) -> None:
    spec: EngineSpec = replace(tiny.spec(), dtype="int8")
    assert "/int8-" in create_engine(spec, folder).info.label


@pytest.mark.parametrize("kernel", KERNELS["int8"]["cpu"])
def test_a_calibration_keeps_to_the_ids_and_positions_that_the_model_has(
    monkeypatch: pytest.MonkeyPatch, kernel: type[QuantisedLinear]
) -> None:
    monkeypatch.setitem(KERNELS["int8"], "cpu", (kernel,))
    monkeypatch.setattr(quantise_module, "_trial", lambda *_: 1.0)
    model = tiny.model("gpt2", n_positions=32)
    quantise(model, "int8", device="cpu", rest=torch.float32, prompts=[[5, 10**6, *range(60)], [10**6]])
    assert kernel_of(model) is not None
