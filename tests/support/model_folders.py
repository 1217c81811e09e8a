"""Small model folders written by hand: the right files, a few bytes of weights, no torch."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "max_position_embeddings": 128,
}


def safetensors(tensors: dict[str, tuple[str, list[int], int]]) -> bytes:
    """A safetensors file of zeros: name -> (dtype, shape, bytes)."""
    header, offset = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(offset)


WEIGHTS = safetensors({"a": ("F32", [4, 8], 128), "b": ("BF16", [4], 8)})


def write_model(folder: Path, **changes: Any) -> Path:
    """A whole model folder; ``changes`` go into its config."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def write_sharded(folder: Path, count: int = 3) -> Path:
    """The same with its weights in several files and an index."""
    write_model(folder)
    (folder / "model.safetensors").unlink()
    names = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    for name in names:
        (folder / name).write_bytes(WEIGHTS)
    index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
