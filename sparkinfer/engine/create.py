"""From a spec and a model folder to an engine that has proved itself: fake, packed, or the always-right path."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.base import Engine, EngineInfo
from sparkinfer.engine.fake import FakeEngine
from sparkinfer.errors import DeviceNotFound, InsufficientMemory, ModelNotFound, SelfCheckFailed, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from sparkinfer.engine.attention.base import Attention, LayerShape
    from sparkinfer.engine.kv import KvPool
    from sparkinfer.engine.runner import PackedRunner
    from sparkinfer.engine.sampler import Sampler

_LOG = logging.getLogger(__name__)
_CPU_KV_BYTES = 4 * 1024**3  # more than a CPU can use before its products are the limit
_DEFAULT_CONTEXT = 2048  # of models whose config names none


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
    device, threads = _prepare_device(spec)
    dtype = ("fp32" if device == "cpu" else "bf16") if spec.dtype == "auto" else spec.dtype
    from sparkinfer.model import load
    from sparkinfer.model.memory import check_fits

    if device == "cpu":
        check_fits(
            folder,
            dtype=dtype,
            kv_memory=spec.settings.kv_memory,
            max_model_len=spec.settings.max_model_len,
            weights_memory=spec.settings.weights_memory,
        )
    model = load(
        folder,
        dtype=dtype,
        device=device,
        trust_remote_code=spec.trust_remote_code,
        weights_memory=spec.settings.weights_memory,
    )
    return build_engine(model, spec, dtype=dtype, device=device, threads=threads)


def build_engine(model: PreTrainedModel, spec: EngineSpec, *, dtype: str, device: str, threads: int) -> Engine:
    """The engine for a loaded model: packed where it proves itself, else the always-right path.

    Args:
        model: in eval mode, on its device.
        spec: settings and whether the always-right path is allowed.
        dtype: name of the model's dtype, for the label.
        device: ``cpu`` or a CUDA device.
        threads: CPU threads.

    Raises:
        UnsupportedModel: see :func:`create_engine`.
        SelfCheckFailed: see :func:`create_engine`.
        InsufficientMemory: not one sequence fits the KV memory.
    """
    from sparkinfer.engine.fallback import StaticEngine
    from sparkinfer.engine.sampler import Sampler
    from sparkinfer.model.quantise import kernel_of, weights_bytes

    kernel = kernel_of(model)
    dtype = dtype if kernel is None else f"{dtype}-{kernel}"
    info = EngineInfo(
        label=f"static/{device}/{dtype}",
        max_model_len=_context(model, spec),
        device=device,
        dtype=dtype,
        weights_bytes=weights_bytes(model),
    )
    sampler = Sampler(repetition_penalty=float(getattr(model.generation_config, "repetition_penalty", None) or 1.0))
    try:
        return _packed_engine(model, spec, info, sampler, threads)
    except (UnsupportedModel, SelfCheckFailed) as error:
        if not spec.fallback:
            raise
        _LOG.warning("%s Running one prompt at a time.", error)
        if not model.can_generate():
            raise UnsupportedModel(
                f"{model.config.model_type} cannot generate text; choose a causal language model."
            ) from error
        model.set_attn_implementation("eager")
        return StaticEngine(model, sampler=sampler, info=info)


def _packed_engine(
    model: PreTrainedModel, spec: EngineSpec, info: EngineInfo, sampler: Sampler, threads: int
) -> Engine:
    from sparkinfer.engine import probe, selfcheck
    from sparkinfer.engine.engine import PackedEngine
    from sparkinfer.engine.head import order_head
    from sparkinfer.engine.inplace import work_in_place
    from sparkinfer.engine.runner import PackedRunner
    from sparkinfer.model.memory import available

    settings = spec.settings
    shapes = probe.attention_layers(model)
    _LOG.info("modules that work in place: %s", work_in_place(model))
    if not settings.strict:  # a trial on the clock decides, and two engines may decide differently
        info = replace(info, weights_bytes=info.weights_bytes + order_head(model, free_bytes=available()))

    def runner(num_blocks: int, about: EngineInfo) -> PackedRunner:
        pool, attention = _pool(shapes, num_blocks + settings.strict, spec, model, threads)
        about = replace(about, label=f"paged/{about.device}-{attention.name}/{about.dtype}", kv_bytes=pool.num_bytes)
        return PackedRunner(model, pool=pool, attention=attention, sampler=sampler, info=about, strict=settings.strict)

    proof = selfcheck.check(model, shapes, lambda blocks: runner(blocks, info), max_model_len=info.max_model_len)
    num_blocks, max_model_len = _kv_blocks(shapes, spec, model, info)
    _LOG.info("self-check passed: %s", proof)
    return PackedEngine(runner(num_blocks, replace(info, max_model_len=max_model_len)), settings)


def _pool(
    shapes: Sequence[LayerShape], num_blocks: int, spec: EngineSpec, model: PreTrainedModel, threads: int
) -> tuple[KvPool, Attention]:
    """A pool and the kernel for its device. The CPU kernel computes in float32 whatever the model's dtype."""
    import torch

    from sparkinfer.engine.kv import KvPool

    on_cpu = model.device.type == "cpu"
    dtype = torch.float32 if on_cpu else model.dtype
    pool = KvPool(shapes, num_blocks=num_blocks, block_size=spec.settings.block_size, dtype=dtype, device=model.device)
    if on_cpu:
        from sparkinfer.engine.attention.cpu import CpuAttention

        return pool, CpuAttention(pool, threads=threads)
    from sparkinfer.engine.attention.varlen import best_attention

    return pool, best_attention(pool)


def _kv_blocks(
    shapes: Sequence[LayerShape], spec: EngineSpec, model: PreTrainedModel, info: EngineInfo
) -> tuple[int, int]:
    """How many blocks the pool gets, and the longest sequence that then fits."""
    import torch

    from sparkinfer.engine.kv import block_bytes

    settings, on_cpu = spec.settings, model.device.type == "cpu"
    per_block = block_bytes(shapes, block_size=settings.block_size, dtype=torch.float32 if on_cpu else model.dtype)
    wanted = settings.max_batch_size * -(-info.max_model_len // settings.block_size)
    blocks = min(wanted, (settings.kv_memory or _free_for_kv(settings.kv_fraction, model)) // per_block)
    longest = blocks * settings.block_size
    if blocks < 1 or (settings.max_model_len is not None and longest < info.max_model_len):
        raise InsufficientMemory(
            f"The KV pool holds {max(longest, 0)} tokens and one sequence may have {info.max_model_len}; "
            "raise kv_memory or lower max_model_len."
        )
    if longest < info.max_model_len:
        _LOG.warning("The KV pool limits sequences to %d of the model's %d tokens.", longest, info.max_model_len)
    return blocks, min(longest, info.max_model_len)


def _free_for_kv(fraction: float, model: PreTrainedModel) -> int:
    import torch

    if model.device.type != "cpu":
        return int(torch.cuda.mem_get_info(model.device)[0] * fraction)
    from sparkinfer.model.memory import available

    return min(int(available() * fraction), _CPU_KV_BYTES)


def _context(model: PreTrainedModel, spec: EngineSpec) -> int:
    """The model's own context, or the shorter one that is asked for."""
    from sparkinfer.engine.probe import text_config

    own = getattr(text_config(model.config), "max_position_embeddings", None) or _DEFAULT_CONTEXT
    asked = spec.settings.max_model_len
    return int(own) if asked is None else min(int(own), asked)


def _prepare_device(spec: EngineSpec) -> tuple[str, int]:
    """The torch device, and the CPU threads (Spark forces OMP_NUM_THREADS=1 on its workers, so torch is told here)."""
    import torch

    from sparkinfer.model.devices import cpu_threads, device_set

    devices = device_set(spec.settings.device, task_addresses=spec.task_gpus)
    threads = cpu_threads(spec.settings.threads)
    torch.set_num_threads(threads)
    return ("cpu" if devices.kind == "cpu" else _torch_name(devices.ids[0])), threads


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
