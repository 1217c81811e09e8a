"""From a spec and a model folder to an engine that has proved itself: fake, packed, or the always-right path."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.base import Engine
from sparkinfer.engine.fake import FakeEngine
from sparkinfer.errors import DeviceNotFound, ModelNotFound, SelfCheckFailed, UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOG = logging.getLogger(__name__)


def create_engine(spec: EngineSpec, folder: Path | None) -> Engine:
    """Load the model and build the engine that can run it.

    Args:
        spec: which model, dtype and settings.
        folder: what :func:`sparkinfer.model.fetch` gave; None only for the fake model.

    Raises:
        InsufficientMemory: weights or the smallest KV pool do not fit.
        UnsupportedModel: neither path can run it, or only the slow one and ``spec.fallback`` is off.
        SelfCheckFailed: packed it gives other logits than alone, and ``spec.fallback`` is off.
    """
    if spec.model.kind == "fake":
        return FakeEngine(spec.model.location, spec.settings)
    if folder is None:
        raise ModelNotFound(f"There is no folder for {spec.model.uri!r}; fetch the model before the engine is made.")
    devices, threads = _prepare_devices(spec)
    device = devices[0]
    from sparkinfer.model import load
    from sparkinfer.model.loading import dtype_for
    from sparkinfer.model.memory import check_fits

    dtype = dtype_for(spec.dtype, device)

    if device == "cpu":
        check_fits(
            folder,
            dtype=dtype,
            kv_memory=spec.settings.kv_memory,
            max_model_len=spec.settings.max_model_len,
            weights_memory=spec.settings.weights_memory,
        )
    is_compiled = _is_compiled(spec, folder, dtype=dtype, device=device, threads=threads)
    if spec.settings.tensor_parallel > 1:
        from sparkinfer.engine.ranks import create_split_engine

        return create_split_engine(spec, folder, devices=devices, dtype=dtype, threads=threads)

    def built(spec: EngineSpec, *, compiled: bool) -> Engine:
        model = load(
            folder,
            dtype=dtype,
            device=device,
            trust_remote_code=spec.trust_remote_code,
            weights_memory=spec.settings.weights_memory,
        )
        return build_engine(model, spec, dtype=dtype, device=device, threads=threads, compiled=compiled)

    if is_compiled:
        try:
            return built(replace(spec, fallback=False), compiled=True)
        except Exception as error:  # a compiler fails in many ways, and is never needed
            _LOG.warning("Compiled layers cannot be used, plain ones are: %s: %s", type(error).__name__, error)
    return built(spec, compiled=False)


def build_engine(
    model: PreTrainedModel, spec: EngineSpec, *, dtype: str, device: str, threads: int, compiled: bool = False
) -> Engine:
    """The engine for a loaded model: packed where it proves itself, else the always-right path.

    Args:
        model: in eval mode, on its device.
        spec: settings and whether the always-right path is allowed.
        dtype: name of the model's dtype, for the label.
        device: ``cpu`` or a CUDA device.
        threads: CPU threads.
        compiled: let torch.compile have the decoder layers.

    Raises:
        UnsupportedModel: see :func:`create_engine`.
        SelfCheckFailed: see :func:`create_engine`.
        InsufficientMemory: not one sequence fits the KV memory.
    """
    from sparkinfer.engine.build import about, build_runner, sampler_of
    from sparkinfer.engine.engine import PackedEngine
    from sparkinfer.engine.fallback import StaticEngine

    info = about(model, spec, dtype=dtype, device=device)
    try:
        return PackedEngine(build_runner(model, spec, info, threads=threads, compiled=compiled), spec.settings)
    except (UnsupportedModel, SelfCheckFailed) as error:
        if not spec.fallback:
            raise
        _LOG.warning("%s Running one prompt at a time.", error)
        if not model.can_generate():
            raise UnsupportedModel(
                f"{model.config.model_type} cannot generate text; choose a causal language model."
            ) from error
        model.set_attn_implementation("eager")
        return StaticEngine(model, sampler=sampler_of(model), info=info)


def _is_compiled(spec: EngineSpec, folder: Path, *, dtype: str, device: str, threads: int) -> bool:
    """Whether torch.compile pays: never tried unless asked for, and not where the clock must decide nothing or layers are not torch's."""
    from sparkinfer.model.loading import QUANTISED

    settings = spec.settings
    reasons = {
        "strict": settings.strict,
        "weights_memory": settings.weights_memory,
        "tensor_parallel": settings.tensor_parallel > 1,
        f"dtype {dtype}": dtype in QUANTISED,
    }
    if not settings.compile_budget_s:
        return False
    if against := [name for name, holds in reasons.items() if holds]:
        _LOG.warning("compile_budget_s has no effect with %s.", " and ".join(against))
        return False
    from sparkinfer.engine.compiled import verdict_of

    return verdict_of(spec, folder, dtype=dtype, device=device, threads=threads).pays


def _prepare_devices(spec: EngineSpec) -> tuple[list[str], int]:
    """A torch device for each rank, and the CPU threads (Spark forces OMP_NUM_THREADS=1 on its workers, so torch is told here)."""
    import torch

    from sparkinfer.model.devices import cpu_threads, device_set

    ranks = spec.settings.tensor_parallel
    devices = device_set(spec.settings.device, task_addresses=spec.task_gpus, count=ranks)
    threads = max(1, cpu_threads(spec.settings.threads) // (ranks if devices.kind == "cpu" else 1))
    torch.set_num_threads(threads)
    return (["cpu"] * ranks if devices.kind == "cpu" else [_torch_name(gpu) for gpu in devices.ids]), threads


def _torch_name(gpu: str) -> str:
    """``cuda:N`` for the GPU that CUDA knows by this name: an engine process sees its own only, a worker sees them all."""
    import torch

    from sparkinfer.model.devices import visible_gpus

    visible = visible_gpus()
    if gpu in visible:
        return f"cuda:{visible.index(gpu)}"
    for index in range(torch.cuda.device_count()):
        if f"GPU-{torch.cuda.get_device_properties(index).uuid}".startswith(gpu):
            return f"cuda:{index}"
    raise DeviceNotFound(
        f"torch does not see the GPU {gpu} in this worker; use engine_mode='shared', or let the discovery script print indices."
    )
