"""What a model takes and what there is."""

from __future__ import annotations

import pytest

from sparkinfer.errors import InsufficientMemory
from sparkinfer.model import cgroup, memory
from tests.support.model_folders import CONFIG, write_model, write_sharded


def test_weights_are_counted_from_headers_as_they_will_be_loaded(tmp_path) -> None:
    folder = write_model(tmp_path / "one")  # 32 elements of F32 and 4 of BF16
    assert memory.folder_weights_bytes(folder, dtype="fp32") == 36 * 4
    assert memory.folder_weights_bytes(folder, dtype="bf16") == 36 * 2
    assert memory.folder_weights_bytes(write_sharded(tmp_path / "many"), dtype="fp32") == 3 * 36 * 4


def test_grouped_heads_are_counted_once() -> None:
    shape = memory.kv_shape(CONFIG)
    assert (shape.full_layers, shape.window_layers, shape.heads, shape.head_dim) == (2, 0, 2, 8)
    assert shape.token_bytes(4) == 2 * 2 * 2 * 8 * 4
    assert shape.sequence_bytes(10, 4) == 10 * shape.token_bytes(4)


def test_layers_with_a_window_need_no_more_than_it() -> None:
    kinds = ["sliding_attention", "full_attention"]
    shape = memory.kv_shape({**CONFIG, "sliding_window": 4, "layer_types": kinds, "head_dim": 16})
    assert (shape.full_layers, shape.window_layers, shape.window, shape.head_dim) == (1, 1, 4, 16)
    assert shape.sequence_bytes(10, 4) == 2 * (10 + 4) * 2 * 16 * 4
    assert memory.kv_shape({**CONFIG, "sliding_window": 4}).window_layers == 2
    assert memory.kv_shape({**CONFIG, "sliding_window": 4, "use_sliding_window": False}).window_layers == 0


def test_other_names_of_the_same_figures_are_understood() -> None:
    gpt2 = memory.kv_shape({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024})
    assert (gpt2.full_layers, gpt2.heads, gpt2.head_dim, gpt2.context) == (12, 12, 64, 1024)
    assert memory.kv_shape({"text_config": CONFIG}).heads == 2
    assert memory.kv_shape({**CONFIG, "num_key_value_heads": None, "multi_query": True}).heads == 1


def test_a_model_that_does_not_fit_is_refused_with_figures_and_ways_out(tmp_path) -> None:
    folder = write_model(tmp_path / "m")
    memory.check_fits(folder, dtype="fp32", free=memory.PROCESS_BYTES + 2**20)
    with pytest.raises(InsufficientMemory, match=r"needs .* is free .*memoryOverhead=\d+m"):
        memory.check_fits(folder, dtype="fp32", free=memory.PROCESS_BYTES)
    with pytest.raises(InsufficientMemory, match=r"KV pool 8\.00 GiB"):
        memory.check_fits(folder, dtype="fp32", free=4 * 2**30, kv_memory=8 * 2**30)


def test_this_host_has_memory_within_its_limit() -> None:
    assert 0 < memory.available() <= memory.limit()


def make_cgroup(tmp_path, monkeypatch, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text("0::/\n4:memory:/\n")
    monkeypatch.setattr(cgroup, "_ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "_OWN", tmp_path / "own")


def test_a_containers_limit_of_version_2_counts_without_page_cache(tmp_path, monkeypatch) -> None:
    files = {
        "memory.max": "104857600\n",
        "memory.current": "83886080\n",
        "memory.stat": "anon 1\ninactive_file 31457280\n",
    }
    make_cgroup(tmp_path, monkeypatch, files)
    assert memory.limit() == 100 * 2**20
    assert memory.available() == 50 * 2**20


def test_a_containers_limit_of_version_1_counts_and_none_does_not(tmp_path, monkeypatch) -> None:
    files = {
        "memory/memory.limit_in_bytes": "104857600",
        "memory/memory.usage_in_bytes": "52428800",
        "memory.max": "max\n",
    }
    make_cgroup(tmp_path, monkeypatch, files)
    assert memory.limit() == 100 * 2**20
    assert memory.available() == 50 * 2**20
    make_cgroup(tmp_path, monkeypatch, {"memory/memory.limit_in_bytes": str(2**63 - 4096)})
    assert memory.limit() > 100 * 2**20
