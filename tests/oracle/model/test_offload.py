"""Models that are larger than the memory they may have: layers that stay on disk, the same tokens, and what is refused."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparkinfer.engine.create import create_engine
from sparkinfer.errors import InsufficientMemory, InvalidConfig, MissingDependency
from sparkinfer.model import load, memory
from sparkinfer.model.quantise import weights_bytes
from tests.oracle.engine import tiny

PROMPTS = tiny.prompts((5, 20, 33))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny.model("llama", num_hidden_layers=6).save_pretrained(path)
    return path


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_an_engine_with_a_part_of_the_layers_on_disk_gives_the_same_tokens(
    tmp_path: Path, stored: torch.dtype, share: float
) -> None:
    tiny.model("llama", num_hidden_layers=6).to(stored).save_pretrained(tmp_path)
    whole = memory.folder_weights_bytes(tmp_path)
    spec = tiny.spec(weights_memory=int(whole * share))
    engine = create_engine(spec, tmp_path)
    assert engine.info.label == "paged/cpu-numba/fp32"
    assert 0 < engine.info.weights_bytes <= whole * share
    want = tiny.greedy(create_engine(tiny.spec(), tmp_path), PROMPTS, 6)
    assert tiny.greedy(engine, PROMPTS, 6) == want


def test_room_for_all_changes_nothing(folder: Path) -> None:
    model = load(folder, weights_memory=1 << 40)
    assert weights_bytes(model) == memory.folder_weights_bytes(folder)


def test_a_model_that_fits_nowhere_is_refused_with_what_it_needs_and_a_part_of_it_may_fit(folder: Path) -> None:
    free = memory.PROCESS_BYTES + 700_000
    with pytest.raises(InsufficientMemory, match=r"needs .* weights_memory"):
        memory.check_fits(folder, dtype="fp32", free=free, kv_memory=100_000)
    memory.check_fits(folder, dtype="fp32", free=free, kv_memory=100_000, weights_memory=500_000)


def test_what_cannot_be_had_together_or_without_a_package_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidConfig, match="int8"):
        create_engine(replace(tiny.spec(weights_memory=10_000), dtype="int8"), folder)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="accelerate"):
        load(folder, weights_memory=10_000)


def test_an_embedding_that_has_no_room_is_refused_with_what_it_needs_and_what_is_named_is_enough(
    tmp_path: Path,
) -> None:
    tiny.model("llama", vocab_size=8192).save_pretrained(tmp_path)  # 2 MB, of 2.3
    with pytest.raises(InsufficientMemory, match=r"first weights .* 2097152") as raised:
        create_engine(tiny.spec(weights_memory=1_000_000), tmp_path)
    least = int(re.findall(r"give it (\d+)", str(raised.value))[0])
    engine = create_engine(tiny.spec(weights_memory=least), tmp_path)
    assert engine.info.label.startswith("paged/")
    assert all(len(tokens) == 3 for tokens in tiny.greedy(engine, PROMPTS, 3))
