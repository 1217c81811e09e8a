"""Loading: dtype, eval mode, one copy in memory, and what cannot be loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sparkinfer.errors import InvalidConfig, ModelIncomplete, TrustRequired, UnsupportedModel
from sparkinfer.model import fetch, load, resolve
from sparkinfer.model.loading import dtype_for
from tests.support.tiny_llama import save_tiny_llama

IDS = torch.arange(2, 20)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKINFER_CACHE", str(tmp_path / "cache"))


def test_a_folder_gives_the_logits_of_from_pretrained(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = load(fetch(resolve(str(folder))))
    oracle = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, oracle(IDS).logits)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.generation_config.temperature == 0.7


def test_shards_give_the_same_model(folder: Path, tmp_path: Path) -> None:
    sharded = save_tiny_llama(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 1
    with torch.no_grad():
        assert torch.equal(load(sharded)(IDS).logits, load(folder)(IDS).logits)


@pytest.mark.parametrize(
    ("asked", "got"),
    [("auto", torch.float32), ("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_the_dtype_class_is_what_was_asked_for(folder: Path, asked: str, got: torch.dtype) -> None:
    assert {parameter.dtype for parameter in load(folder, dtype=asked).parameters()} == {got}


def test_auto_is_bf16_on_a_gpu_and_other_names_are_refused() -> None:
    assert dtype_for("auto", "cuda:0") == "bf16"
    with pytest.raises(InvalidConfig, match="fp32"):
        dtype_for("int3", "cpu")


def test_weights_are_mapped_from_the_file_and_not_copied(folder: Path) -> None:
    model = load(folder)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
    ranges = [tuple(int(part, 16) for part in line.split()[0].split("-")) for line in mapped]
    for name, parameter in model.named_parameters():
        assert any(low <= parameter.data_ptr() < high for low, high in ranges), name


def test_what_transformers_cannot_load_is_unsupported(folder: Path, tmp_path: Path) -> None:
    broken = save_tiny_llama(tmp_path / "unknown")
    config = json.loads((broken / "config.json").read_text())
    for changes, error in (
        ({"model_type": "of-nobody"}, UnsupportedModel),
        ({"architectures": ["LlamaModel"]}, UnsupportedModel),
        ({"model_type": "of-nobody", "auto_map": {"AutoConfig": "configuration_x.X"}}, TrustRequired),
    ):
        (broken / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(error):
            load(broken)


def test_a_cut_file_is_found_before_anything_is_loaded(tmp_path: Path) -> None:
    cut = save_tiny_llama(tmp_path / "cut")
    with (cut / "model.safetensors").open("r+b") as file:
        file.truncate((cut / "model.safetensors").stat().st_size - 100)
    with pytest.raises(ModelIncomplete, match="finish the download"):
        resolve(str(cut))


def test_pickled_weights_load_only_when_trusted(folder: Path, tmp_path: Path) -> None:
    pickled = save_tiny_llama(tmp_path / "pickled")
    torch.save(load(folder).state_dict(), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match="pickled"):
        load(pickled)
    with torch.no_grad():
        assert torch.equal(load(pickled, trust_remote_code=True)(IDS).logits, load(folder)(IDS).logits)
