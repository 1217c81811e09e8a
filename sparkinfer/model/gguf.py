"""GGUF files: turned once into safetensors by transformers' own reader, so that every engine maps the same file."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkinfer.errors import MissingDependency, ModelIncomplete, UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Part of the fingerprint of what was converted; raised when the conversion's result changes.
CONVERTER_VERSION = "1"
_MAGIC = b"GGUF"


def check_readable(path: Path) -> None:
    """Fail early, without reading the weights.

    Raises:
        MissingDependency: the packages of the extra ``gguf`` are not here.
        ModelIncomplete: the file is empty, cut, or no GGUF file.
    """
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"Reading the GGUF file {path} needs {' and '.join(missing)}: pip install 'sparkinfer[gguf]'."
        )
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise ModelIncomplete(f"{path} does not begin like a GGUF file; download it again.")


def convert(path: Path, folder: Path) -> None:
    """Write the model of a GGUF file into ``folder``: safetensors (fp32, the exact de-quantised values), config,
    generation config and tokenizer with its chat template.

    Raises:
        ModelIncomplete: the file is cut or damaged.
        UnsupportedModel: transformers cannot read this architecture or tokenizer from GGUF.
    """
    check_readable(path)
    pre_tokenizer = _pre_tokenizer_name(path)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place: dict[str, Any] = {"gguf_file": path.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), **place)
        model = AutoModelForCausalLM.from_pretrained(
            str(path.parent), dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **place
        )
    except (ValueError, NotImplementedError, KeyError, RuntimeError) as error:
        raise UnsupportedModel(
            f"transformers cannot read {path} ({error}); take the model's safetensors version instead."
        ) from error
    _mend_tokenizer(tokenizer, pre_tokenizer)
    context = getattr(model.config, "max_position_embeddings", None)
    if context is not None:
        tokenizer.model_max_length = context
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _drop_private_paths(folder / "config.json")


def _mend_tokenizer(tokenizer: PreTrainedTokenizerBase, pre_tokenizer: str | None) -> None:
    """Give SmolLM back the digit splitting that transformers leaves out (tokenizers of type ``smollm``).

    Without it "a  5" becomes a, two single spaces and 5, where the model was trained on a, one double space and 5.
    Source: the model's own tokenizer.json, a Sequence of Digits(individual_digits) and ByteLevel.
    """
    from tokenizers import pre_tokenizers

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and pre_tokenizer == "smollm":
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])


def _pre_tokenizer_name(path: Path) -> str | None:
    """The file's ``tokenizer.ggml.pre``; reading it also shows whether header and tensors are whole."""
    from gguf import GGUFReader

    try:
        field = GGUFReader(str(path)).fields.get("tokenizer.ggml.pre")
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise ModelIncomplete(f"{path} is cut or damaged ({error}); download it again.") from error
    return None if field is None else str(field.contents())


def _drop_private_paths(config: Path) -> None:
    """config.json without the converting machine's path, so that the same file gives the same folder everywhere."""
    values = json.loads(config.read_text())
    values.pop("_model_name_or_path", None)
    config.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
