"""From a folder to a model in eval mode: mapped from disk, one copy in memory, nothing hashed and nothing fetched."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sparkinfer.errors import InsufficientMemory, InvalidConfig, ModelIncomplete, TrustRequired, UnsupportedModel
from sparkinfer.model.folder import check_config, read_config, weight_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: Classes of weights that are made at load, see :mod:`sparkinfer.model.quantise`.
QUANTISED = ("int8", "int4")


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
) -> PreTrainedModel:
    """Load a causal language model with its generation config, in eval mode and without gradients.

    Weights stored in the dtype asked for are mapped from the file, so that processes share them and the page cache is
    the only copy; others are converted tensor by tensor.

    Args:
        folder: what :func:`sparkinfer.model.fetch` gave.
        dtype: ``auto`` (fp32 on CPU, bf16 on GPU) ``| fp32 | bf16 | fp16 | int8 | int4``; of the last two the linear layers, the
            rest as ``auto`` has it.
        device: a torch device.
        trust_remote_code: whether Python code in the folder may run, and pickled weights be read.
        attention: name of an attention function known to transformers.

    Raises:
        InvalidConfig: an unknown dtype.
        ModelIncomplete: files are missing or cut.
        UnsupportedModel: an architecture that transformers has no causal language model for.
        TrustRequired: it ships its own Python code.
        InsufficientMemory: the device is full.
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
    if not device.startswith("cpu") and not is_quantised and importlib.util.find_spec("accelerate") is not None:
        arguments["device_map"] = {"": device}  # straight onto the device, without a detour through host memory
    try:
        model = _from_pretrained(folder, arguments)
        if is_quantised:
            from sparkinfer.model.quantise import calibration_ids, quantise

            rest = DTYPES[dtype_for("auto", device)]
            quantise(model.eval(), wanted, device=device, rest=rest, prompts=calibration_ids(folder))
        return model.to(device).eval().requires_grad_(False)
    except torch.OutOfMemoryError as error:
        raise InsufficientMemory(
            f"{folder.name} does not fit on {device}: {error}. Use a smaller model or dtype."
        ) from error


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
