"""From a folder to a model in eval mode: mapped from disk, one copy in memory, nothing hashed and nothing fetched."""

from __future__ import annotations

import atexit
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sparkinfer.errors import (
    InsufficientMemory,
    InvalidConfig,
    MissingDependency,
    ModelIncomplete,
    TrustRequired,
    UnsupportedModel,
)
from sparkinfer.model.folder import check_config, read_config, weight_files
from sparkinfer.model.memory import available, folder_weights_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: Classes of weights that are made at load, see :mod:`sparkinfer.model.quantise`.
QUANTISED = ("int8", "fp8", "int4")


def dtype_for(dtype: str, device: str) -> str:
    """The class that ``auto`` means on a device: fp32 on CPU, bf16 on GPU.

    Raises:
        InvalidConfig: no class that sparkinfer knows.
    """
    if dtype == "auto":
        return "fp32" if device.startswith("cpu") else "bf16"
    if dtype not in DTYPES and dtype not in QUANTISED:
        raise InvalidConfig(f"dtype must be one of auto, {', '.join([*DTYPES, *QUANTISED])}, not {dtype!r}.")
    return dtype


def load(
    folder: Path,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    trust_remote_code: bool = False,
    attention: str = "eager",
    weights_memory: int | None = None,
    ranks: int = 1,
) -> PreTrainedModel:
    """Load a causal language model with its generation config, in eval mode and without gradients.

    Weights stored in the dtype asked for are mapped from the file, so that processes share them and the page cache is
    the only copy; others are converted tensor by tensor.

    Args:
        folder: what :func:`sparkinfer.model.fetch` gave.
        dtype: ``auto`` (fp32 on CPU, bf16 on GPU) ``| fp32 | bf16 | fp16 | int8 | fp8 | int4``; of the last three the linear layers, the
            rest as ``auto`` has it.
        device: a torch device.
        trust_remote_code: whether Python code in the folder may run, and pickled weights be read.
        attention: name of an attention function known to transformers.
        weights_memory: bytes of weights to keep on the device, whole layers; the others stay in host memory (where the device is a
            GPU) and on disk, and are read for each forward. None: all are kept.
        ranks: over how many processes of this process group the weights are split by transformers' tensor-parallel plan.

    Raises:
        InvalidConfig: an unknown dtype, or ``weights_memory`` with one that is made at load.
        MissingDependency: ``weights_memory`` without accelerate.
        ModelIncomplete: files are missing or cut.
        UnsupportedModel: an architecture that transformers has no causal language model for.
        TrustRequired: it ships its own Python code.
        InsufficientMemory: the device is full, or ``weights_memory`` too little for the first layers.
    """
    config = read_config(folder)
    check_config(config, place=str(folder), trust_remote_code=trust_remote_code)
    weights = weight_files(folder, trust_remote_code=trust_remote_code)
    wanted = dtype_for(dtype, device)
    is_quantised = wanted in QUANTISED
    arguments: dict[str, Any] = {
        "dtype": "auto"
        if is_quantised
        else DTYPES[wanted],  # auto: as stored, so that nothing is made twice as large first
        "attn_implementation": attention,
        "trust_remote_code": trust_remote_code,
        "use_safetensors": weights[0].suffix == ".safetensors",
        "local_files_only": True,
    }
    if ranks > 1:
        from transformers.distributed import DistributedConfig

        arguments["distributed_config"] = DistributedConfig(tp_size=ranks)
    elif not device.startswith("cpu") and not is_quantised and importlib.util.find_spec("accelerate") is not None:
        arguments["device_map"] = {"": device}  # straight onto the device, without a detour through host memory
    elsewhere = weights_memory is not None and weights_memory < folder_weights_bytes(folder, dtype=wanted)
    if elsewhere:
        arguments |= _spread(device, weights_memory, is_quantised=is_quantised)
    try:
        model = _from_pretrained(folder, arguments)
        if elsewhere:
            _check_begins_on(device, model, weights_memory)
        if elsewhere or ranks > 1:
            return model.eval().requires_grad_(False)
        if is_quantised:
            from sparkinfer.model.quantise import calibration_ids, quantise

            rest = DTYPES[dtype_for("auto", device)]
            quantise(model.eval(), wanted, device=device, rest=rest, prompts=calibration_ids(folder))
        return model.to(device).eval().requires_grad_(False)
    except torch.OutOfMemoryError as error:
        raise InsufficientMemory(
            f"{folder.name} does not fit on {device}: {error}. Use a smaller model or dtype."
        ) from error


def _spread(device: str, weights_memory: int | None, *, is_quantised: bool) -> dict[str, Any]:
    """What from_pretrained needs to keep so much on the device and the rest below it, by accelerate."""
    if is_quantised:
        raise InvalidConfig(
            "weights_memory keeps layers as they are stored; it cannot be had with a dtype that is made at load (int8, fp8, int4)."
        )
    if importlib.util.find_spec("accelerate") is None:
        raise MissingDependency("weights_memory needs accelerate: pip install accelerate.")
    memory: dict[str | int, int | None] = {"cpu": weights_memory}
    if not device.startswith("cpu"):
        memory = {torch.device(device).index or 0: weights_memory, "cpu": available() // 2}
    # Weights that are stored in another dtype are written there once, in the one they are computed in.
    converted = tempfile.mkdtemp(prefix="sparkinfer-weights-")
    atexit.register(shutil.rmtree, converted, ignore_errors=True)
    return {"device_map": "auto", "max_memory": memory, "offload_folder": converted}


def _check_begins_on(device: str, model: PreTrainedModel, weights_memory: int | None) -> None:
    """Of a model whose first layers lie elsewhere nobody knows where it runs: accelerate puts them, in order, where they fit.

    Raises:
        InsufficientMemory: with the memory that they need.
    """
    first = next(model.parameters())
    if first.device.type == torch.device(device).type:
        return
    largest = max(sum(p.numel() for p in layer.parameters()) for layer in model.modules() if _is_layer(layer, model))
    least = (2 * first.numel() + largest) * first.element_size()
    raise InsufficientMemory(
        f"weights_memory of {weights_memory} bytes has no room for the first weights of {model.config.model_type}, which have "
        f"{first.numel() * first.element_size()}, and its largest layer; give it {least}."
    )


def _is_layer(module: torch.nn.Module, model: PreTrainedModel) -> bool:
    return type(module).__name__ in (model._no_split_modules or ())


def _from_pretrained(folder: Path, arguments: dict[str, Any]) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # the engine's log is no terminal
    try:
        return AutoModelForCausalLM.from_pretrained(str(folder), **arguments)
    except (ValueError, KeyError, AttributeError, ImportError) as error:
        raise _explained(folder, error) from error
    except OSError as error:
        raise ModelIncomplete(
            f"{folder} cannot be loaded: {str(error).splitlines()[0]} Copy the model again."
        ) from error


def _explained(folder: Path, error: Exception) -> Exception:
    text = (str(error).splitlines() or [type(error).__name__])[0]
    if "trust_remote_code" in str(error):
        return TrustRequired(f"{folder} ships its own Python code; read it, and pass trust_remote_code=True to run it.")
    return UnsupportedModel(
        f"transformers cannot load {folder} as a causal language model: {text} Upgrade transformers if the model is newer, or name another."
    )
