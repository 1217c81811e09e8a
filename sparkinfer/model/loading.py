"""From a folder to a model in eval mode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load(
    folder: Path,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    trust_remote_code: bool = False,
    attention: str = "eager",
) -> PreTrainedModel:
    """Load a causal language model, in eval mode and without gradients.

    Args:
        folder: what :func:`sparkinfer.model.fetch` gave.
        dtype: ``auto`` (fp32 on CPU, bf16 on GPU) ``| fp32 | bf16 | fp16``.
        device: a torch device.
        trust_remote_code: whether Python code in the folder may run.
        attention: name of an attention function known to transformers.
    """
    from transformers import AutoModelForCausalLM

    wanted = "fp32" if device == "cpu" else "bf16"
    model = AutoModelForCausalLM.from_pretrained(
        str(folder),
        dtype=_DTYPES[wanted if dtype == "auto" else dtype],
        device_map=None if device == "cpu" else {"": device},
        attn_implementation=attention,
        trust_remote_code=trust_remote_code,
        local_files_only=True,
        use_safetensors=True,
    )
    return model.eval().requires_grad_(False)
