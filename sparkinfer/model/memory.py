"""What memory there is (container, host) and what a model takes, from file headers and its config: before anything is loaded."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkinfer.errors import InsufficientMemory
from sparkinfer.model import cgroup
from sparkinfer.model.folder import read_config, read_header, weight_files
from sparkinfer.model.local import present
from sparkinfer.types import ModelRef

#: The engine process without weights and KV: torch, transformers, tokenizer, kernels, activations of a step.
PROCESS_BYTES = 700 * 1024**2
ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
#: Bytes of a weight of a linear layer; embeddings and norms stay as they would be without.
_QUANTISED_BYTES = {"int8": 1.0, "fp8": 1.0, "int4": 0.625}
_KV_ITEM_BYTES = 4  # on a CPU, whatever the weights are
_EMBEDDING = re.compile(r"embed|(^|\.)wte|(^|\.)wpe")
_MEMINFO = Path("/proc/meminfo")
_UNLIMITED = 1 << 60  # version 1 says "no limit" as a number near 2**63
#: Where configs of the many architectures keep the same figure.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """How many bytes of K and V a model keeps.

    Attributes:
        full_layers: layers that attend to everything.
        window_layers: layers that attend to the last ``window`` tokens only.
        heads: key/value heads of a layer (grouped heads counted once).
        head_dim: elements of one head.
        window: tokens; 0 where no layer has one.
        context: longest sequence of the model in tokens.
    """

    full_layers: int
    window_layers: int
    heads: int
    head_dim: int
    window: int
    context: int

    def token_bytes(self, item_bytes: int) -> int:
        """Bytes that one token takes over all layers."""
        return 2 * (self.full_layers + self.window_layers) * self.heads * self.head_dim * item_bytes

    def sequence_bytes(self, tokens: int, item_bytes: int) -> int:
        """Bytes that a sequence needs at least: layers with a window need no more than it."""
        kept = self.full_layers * tokens + self.window_layers * min(tokens, self.window or tokens)
        return 2 * kept * self.heads * self.head_dim * item_bytes


def kv_shape(config: dict[str, Any]) -> KvShape:
    """The KV cache's shape by a model's config.json."""
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(text, dict)
    layers, heads = _first(text, _LAYERS, 0), _first(text, _HEADS, 1)
    window = int(text.get("sliding_window") or 0) if text.get("use_sliding_window", True) else 0
    kinds = text.get("layer_types")
    windowed = sum(kind == "sliding_attention" for kind in kinds) if isinstance(kinds, list) else layers
    windowed = min(layers, windowed) if window else 0
    return KvShape(
        full_layers=layers - windowed,
        window_layers=windowed,
        heads=1 if text.get("multi_query") else _first(text, _KV_HEADS, heads),
        head_dim=int(text.get("head_dim") or _first(text, _HIDDEN, 0) // max(1, heads)),
        window=window,
        context=_first(text, _CONTEXT, 2048),
    )


def _first(values: dict[str, Any], names: tuple[str, ...], default: int) -> int:
    return next((int(values[name]) for name in names if isinstance(values.get(name), int)), default)


def weights_bytes(ref: ModelRef, *, dtype: str = "fp32") -> int | None:
    """Bytes of the weights once loaded; None where the model is not on this host yet."""
    folder = present(ref)
    return None if folder is None else folder_weights_bytes(folder, dtype=dtype)


def folder_weights_bytes(folder: Path, *, dtype: str = "fp32", at_most: int | None = None) -> int:
    """Bytes of a folder's weights once loaded as ``fp32 | bf16 | fp16 | int8 | fp8 | int4``, from the files' headers.

    Args:
        folder: the model's folder.
        dtype: as it will be loaded.
        at_most: the setting ``weights_memory``: what is more stays elsewhere.
    """
    total = 0
    for path in weight_files(folder, trust_remote_code=True):
        if path.suffix != ".safetensors":
            total += path.stat().st_size  # pickles: about their size
            continue
        for name, tensor in read_header(path).items():
            is_float = tensor.dtype in ("F64", "F32", "F16", "BF16") or tensor.dtype.startswith("F8")
            item_bytes: float = ITEM_BYTES.get(dtype, ITEM_BYTES["fp32"])
            if dtype in _QUANTISED_BYTES and len(tensor.shape) == 2 and not _EMBEDDING.search(name):
                item_bytes = _QUANTISED_BYTES[dtype]
            total += math.ceil(math.prod(tensor.shape) * item_bytes) if is_float else tensor.num_bytes
    return total if at_most is None else min(total, at_most)


def check_fits(
    folder: Path,
    *,
    dtype: str,
    free: int | None = None,
    kv_memory: int | None = None,
    max_model_len: int | None = None,
    weights_memory: int | None = None,
    place: str = "this host",
) -> None:
    """Whether weights, the process and the smallest useful KV pool fit, before anything is loaded.

    Args:
        folder: the model's folder.
        dtype: ``fp32 | bf16 | fp16 | int8 | fp8 | int4``, as it will be loaded.
        free: bytes that are free there; None: what :func:`available` says.
        kv_memory: bytes asked for the KV pool; None: one sequence of ``max_model_len``, at most 4,096 tokens.
        max_model_len: tokens; None: the model's context.
        weights_memory: bytes of weights that stay in memory, the rest on disk; None: all of them.
        place: for the message.

    Raises:
        InsufficientMemory: with the figures and the ways out.
    """
    free = available() if free is None else free
    weights = folder_weights_bytes(folder, dtype=dtype, at_most=weights_memory)
    shape = kv_shape(read_config(folder))
    tokens = min(max_model_len or shape.context, 4096)
    pool = kv_memory if kv_memory is not None else shape.sequence_bytes(tokens, _KV_ITEM_BYTES)
    needed = weights + pool + PROCESS_BYTES
    if needed > free:
        raise InsufficientMemory(
            f"{folder.name} as {dtype} needs {_size(needed)} on {place} (weights {_size(weights)}, KV pool {_size(pool)}, process "
            f"{_size(PROCESS_BYTES)}), and {_size(free)} is free of {_size(limit())}; use a smaller model, a smaller dtype (int8), "
            f"keep a part of the weights on disk (engine setting weights_memory), or give executors spark.executor.memoryOverhead={overhead_mb(weights, pool)}m."
        )


def overhead_mb(weights: int, kv: int) -> int:
    """The ``spark.executor.memoryOverhead`` in MiB that an executor needs beside its JVM: engine, and 512 MiB for
    Python workers and Spark's own."""
    return -(-(int(weights * 1.2) + kv + PROCESS_BYTES) // 1024**2) + 512


def limit() -> int:
    """Bytes that this process may use at all: the container's limit, or the host's memory."""
    bounds = [bound for bound, _ in _cgroups()]
    return min([*bounds, _meminfo("MemTotal")])


def available() -> int:
    """Bytes that are free for a new process now, in this container and on this host. Page cache counts as free."""
    rooms = [max(0, bound - used) for bound, used in _cgroups()]
    return min([*rooms, _meminfo("MemAvailable")])


def _meminfo(name: str) -> int:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.total if name == "MemTotal" else memory.available)


def _cgroups() -> Iterator[tuple[int, int]]:
    """(limit, used without page cache) in bytes of every control group above this process that has a limit."""
    for folder in cgroup.folders("memory"):
        for bound_name, used_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            bound = _number(folder / bound_name)
            if bound is not None and bound < _UNLIMITED:
                used = _number(folder / used_name) or 0
                yield bound, max(0, used - _stat(folder / "memory.stat", cache_name))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def _stat(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            if line.startswith(name + " "):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0


def _size(number: int) -> str:
    return f"{number / 1024**3:.2f} GiB" if number >= 1024**3 else f"{number / 1024**2:.0f} MiB"
