"""Model folders: what must lie in one, what does, and whether it is whole. Reads headers, never weights."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkinfer.errors import InvalidModelUri, ModelIncomplete, ModelNotFound, TrustRequired, UnsupportedModel

#: Any one of these sets makes a tokenizer.
_TOKENIZERS = (
    {"tokenizer.json"}, {"tokenizer.model"}, {"vocab.json", "merges.txt"}, {"spiece.model"}, {"vocab.txt"}, {"tekken.json"},
)  # fmt: skip
_GENERATES = re.compile(r"(ForCausalLM|LMHeadModel|ForConditionalGeneration)$")
_LFS_POINTER = b"version https://git-lfs"
_MAX_HEADER = 100_000_000
_PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "consolidated*.pth")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor of a safetensors file: its stored dtype (``F32``, ``BF16`` ...), shape and bytes."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as plain values.

    Raises:
        ModelIncomplete: it is missing or no JSON.
    """
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelIncomplete(f"{folder} holds no config.json{_instead(folder)}.") from error
    except (ValueError, OSError) as error:
        raise ModelIncomplete(f"{path} cannot be read ({error}); copy it again.") from error
    if not isinstance(values, dict):
        raise ModelIncomplete(f"{path} is no JSON object; copy it again.")
    return values


def check_folder(folder: Path, *, trust_remote_code: bool = False) -> None:
    """Whether the folder holds a whole causal language model, by names, sizes and headers alone.

    Raises:
        ModelNotFound: there is no such folder on this host.
        ModelIncomplete: names the missing or cut files.
        UnsupportedModel: no model that writes text, an adapter, or only pickled weights.
        TrustRequired: it ships its own Python code.
    """
    if not folder.is_dir():
        raise ModelNotFound(
            f"{folder} is not there on this host; every executor must see the model's folder under this path."
        )
    check_config(read_config(folder), place=str(folder), trust_remote_code=trust_remote_code)
    for path in weight_files(folder, trust_remote_code=trust_remote_code):
        if path.suffix == ".safetensors":
            read_header(path)
    names = {path.name for path in folder.iterdir()}
    if not any(wanted <= names for wanted in _TOKENIZERS) and not (
        trust_remote_code and list(folder.glob("tokenization*.py"))
    ):
        raise ModelIncomplete(
            f"{folder} holds no tokenizer (tokenizer.json or tokenizer.model); copy it beside the weights."
        )


def check_config(config: dict[str, Any], *, place: str, trust_remote_code: bool) -> None:
    """Whether a config.json describes a model that writes text and may run here.

    Raises:
        UnsupportedModel: encoders, encoder-decoders, classifiers.
        TrustRequired: it ships its own Python code, transformers has none for it, and the user has not said yes.
    """
    names = [str(name) for name in config.get("architectures") or []]
    if config.get("is_encoder_decoder"):
        raise UnsupportedModel(
            f"{place} is an encoder-decoder ({', '.join(names)}); sparkinfer runs decoder-only models."
        )
    if names and not any(_GENERATES.search(name) for name in names) and not config.get("auto_map"):
        raise UnsupportedModel(
            f"{place} is a {', '.join(names)}, which writes no text; name a causal language model (architecture ...ForCausalLM)."
        )
    if config.get("auto_map") and not trust_remote_code and not _is_known(config):
        raise TrustRequired(
            f"{place} ships its own Python code ({', '.join(names) or config.get('model_type')}). Read it, and pass "
            "trust_remote_code=True to run it on every executor."
        )


def _is_known(config: dict[str, Any]) -> bool:
    """Whether transformers has its own code for the model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return config.get("model_type") in CONFIG_MAPPING_NAMES


def weight_files(folder: Path, *, trust_remote_code: bool = False) -> list[Path]:
    """The files that from_pretrained reads the weights from, sorted.

    Raises:
        ModelIncomplete: none, or shards that the index names are missing.
        UnsupportedModel: only pickled weights, and ``trust_remote_code`` is not set.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _shards(index)
    if (single := folder / "model.safetensors").is_file():
        return [single]
    others = sorted(folder.glob("*.safetensors"))
    if (folder / "adapter_config.json").is_file():
        raise UnsupportedModel(f"{folder} holds an adapter (LoRA) without its base model; merge and save it first.")
    if others:
        raise ModelIncomplete(
            f"{folder} holds {others[0].name}, but neither model.safetensors nor model.safetensors.index.json; "
            "copy the missing index beside the shards."
        )
    pickled = sorted({path for pattern in _PICKLED for path in folder.glob(pattern)})
    if pickled and trust_remote_code:
        return pickled
    if pickled:
        raise pickled_only(str(folder), pickled[0].name)
    raise ModelIncomplete(f"{folder} holds no weights (model.safetensors){_instead(folder)}.")


def pickled_only(place: str, name: str) -> UnsupportedModel:
    """The refusal of pickled weights, with the ways out."""
    return UnsupportedModel(
        f"{place} has only pickled weights ({name}), which can run code when they are read. Save it once with "
        "save_pretrained() as safetensors, name a revision that has them, or pass trust_remote_code=True if you trust its author."
    )


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, OSError) as error:
        raise ModelIncomplete(f"{index} cannot be read ({error!r}); copy it again.") from error
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        shown = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
        raise ModelIncomplete(
            f"{index.parent} is half downloaded: {len(missing)} of {len(names)} weight files are missing ({shown}); "
            "finish the download."
        )
    return [index.parent / name for name in names]


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file, from its header.

    Source of the layout: 8 bytes little-endian length, JSON with ``data_offsets``, then the tensors' bytes
    (https://github.com/huggingface/safetensors#format).

    Raises:
        ModelIncomplete: the file is cut, a git-lfs pointer, or no safetensors file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if _LFS_POINTER.startswith(start) and start:
            raise ModelIncomplete(f"{path} is a git-lfs pointer, not the weights; run `git lfs pull` in {path.parent}.")
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER + 1
        if length > min(_MAX_HEADER, size - 8):
            raise ModelIncomplete(f"{path} is cut or no safetensors file ({size:,} bytes); download it again.")
        try:
            header = json.loads(file.read(length))
            tensors = {name: _tensor(value) for name, value in header.items() if name != "__metadata__"}
            end = max((value["data_offsets"][1] for name, value in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ModelIncomplete(f"{path} has a damaged header; download it again.") from error
    if 8 + length + end != size:
        raise ModelIncomplete(f"{path} has {size:,} of its {8 + length + end:,} bytes; finish the download.")
    return tensors


def _tensor(value: dict[str, Any]) -> TensorInfo:
    begin, end = value["data_offsets"]
    return TensorInfo(dtype=str(value["dtype"]), shape=tuple(value["shape"]), num_bytes=end - begin)


def _instead(folder: Path) -> str:
    """A hint from what does lie in the folder."""
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if ggufs:
        return f"; name the file instead: {folder / ggufs[0]}"
    below = sorted(path.parent.name for path in folder.glob("*/config.json"))
    if below:
        return f"; did you mean {folder / below[0]}"
    return "; it is no model folder, or its download was not finished"


def check_not_gguf_shard(path: Path) -> None:
    """Refuse one part of a split GGUF file.

    Raises:
        InvalidModelUri: the file is a part; names the command that joins them.
    """
    if re.search(r"-\d{5}-of-\d{5}\.gguf$", path.name, re.IGNORECASE):
        raise InvalidModelUri(
            f"{path} is one part of a split model; join the parts with `llama-gguf-split --merge` first."
        )
