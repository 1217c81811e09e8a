"""The packed runner for a loaded model: what its layers are, its self-check, the pool that the memory allows, the kernel of its device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine import fused, probe, selfcheck, small_products
from sparkinfer.engine.attention.base import Attention, LayerShape
from sparkinfer.engine.base import EngineInfo
from sparkinfer.engine.compiled import compile_layers
from sparkinfer.engine.graphs import DecodeGraphs, cuda_recorder
from sparkinfer.engine.kv import KvPool, block_bytes
from sparkinfer.engine.replays import PATIENCE, Replays
from sparkinfer.engine.runner import ModelForward, PackedRunner, Recordings
from sparkinfer.engine.sampler import Sampler
from sparkinfer.errors import InsufficientMemory, SelfCheckFailed
from sparkinfer.model.memory import available
from sparkinfer.model.quantise import kernel_of, weights_bytes

_LOG = logging.getLogger(__name__)
_CPU_KV_BYTES = 4 * 1024**3  # more than a CPU can use before its products are the limit
_DEFAULT_CONTEXT = 2048  # of models whose config names none


def about(model: PreTrainedModel, spec: EngineSpec, *, dtype: str, device: str) -> EngineInfo:
    """What is known of an engine before it is built.

    Args:
        model: in eval mode, on its device.
        spec: which engine.
        dtype: name of the model's dtype, for the label.
        device: ``cpu`` or a CUDA device.
    """
    kernel = kernel_of(model)
    dtype = dtype if kernel is None else f"{dtype}-{kernel}"
    return EngineInfo(
        label=f"static/{device}/{dtype}",
        max_model_len=_context(model, spec),
        device=device,
        dtype=dtype,
        weights_bytes=weights_bytes(model),
        vocab_size=int(model.get_input_embeddings().weight.shape[0]),
    )


def sampler_of(model: PreTrainedModel) -> Sampler:
    """The sampler with the model's own defaults."""
    return Sampler(repetition_penalty=float(getattr(model.generation_config, "repetition_penalty", None) or 1.0))


def build_runner(
    model: PreTrainedModel, spec: EngineSpec, info: EngineInfo, *, threads: int, compiled: bool = False
) -> PackedRunner:
    """A runner that has proved itself. Of a split model every rank builds its own, all with the same calls in the same order.

    Args:
        model: in eval mode, on its device.
        spec: which engine.
        info: what :func:`about` says.
        threads: CPU threads.
        compiled: let torch.compile have the decoder layers.

    Raises:
        UnsupportedModel: it cannot run packed.
        SelfCheckFailed: packed it gives other logits than alone.
        InsufficientMemory: not one sequence fits the KV memory.
    """
    settings, ranks = spec.settings, ranks_of(model)
    shapes = probe.attention_layers(model)
    alone = selfcheck.alone(model, shapes, max_model_len=info.max_model_len)
    unchanged = [module for module in model.modules() if "forward" not in vars(module)]
    if compiled:
        _LOG.info("layers that are compiled: %d", compile_layers(model))
    else:
        _LOG.info("modules that run as one pass: %s", fused.fuse(model))
    # A trial on the clock decides, and two engines or ranks may decide differently.
    if not settings.strict and ranks == 1 and not compiled:
        _LOG.info("rows that our own products take: %s", small_products.multiply_few_rows(model, threads=threads))
    sampler = sampler_of(model)

    def runner(num_blocks: int, max_model_len: int, *, recorded: bool, is_trial: bool = False) -> PackedRunner:
        # One more, which no sequence owns, for padding.
        pool, attention = _pool(shapes, num_blocks + 1, spec, model, threads)
        kind, recordings = _recordings(attention, pool, model, is_trial=is_trial) if recorded else ("", None)
        label = f"paged/{info.device}-{attention.name}{kind}/{info.dtype}" + (f"/tp{ranks}" if ranks > 1 else "")
        return PackedRunner(
            model,
            num_blocks=num_blocks,
            block_size=settings.block_size,
            attention=attention,
            sampler=sampler,
            info=replace(info, label=label, kv_bytes=pool.num_bytes * ranks, max_model_len=max_model_len),
            strict=settings.strict,
            recordings=recordings,
        )

    def proves_itself(*, recorded: bool) -> bool:
        """Whether it did so with recorded steps, which not every kernel and model has."""
        tried: list[PackedRunner] = []

        def try_out(num_blocks: int) -> PackedRunner:
            tried.append(runner(num_blocks, info.max_model_len, recorded=recorded, is_trial=True))
            return tried[-1]

        _LOG.info("self-check: %s", selfcheck.check(model, alone, try_out))
        return tried[-1].records

    try:
        recorded = _proof(proves_itself, may_record=_may_record(model, settings) and not compiled)
    except SelfCheckFailed:
        for module in unchanged:  # who runs the model in another way shall have it as it was
            vars(module).pop("forward", None)
        raise
    return runner(*_kv_blocks(shapes, spec, model, info), recorded=recorded)


def _may_record(model: PreTrainedModel, settings: EngineSettings) -> bool:
    places = set((getattr(model, "hf_device_map", None) or {}).values())  # layers on disk are other tensors each time
    return not settings.strict and ranks_of(model) == 1 and len(places) <= 1


def _proof(proves_itself: Callable[..., bool], *, may_record: bool) -> bool:
    """Whether decode steps are recorded: where that fails the self-check, the model has to pass it without."""
    if may_record:
        try:
            return proves_itself(recorded=True)
        except SelfCheckFailed as error:
            _LOG.warning("With recorded decode steps: %s They are run as they are.", error)
    return proves_itself(recorded=False)


def ranks_of(model: PreTrainedModel) -> int:
    """Over how many ranks its weights are split."""
    return int(model.tp_size or 1)


def _pool(
    shapes: Sequence[LayerShape], num_blocks: int, spec: EngineSpec, model: PreTrainedModel, threads: int
) -> tuple[KvPool, Attention]:
    """A pool and the kernel for its device. The CPU kernel computes in float32 whatever the model's dtype."""
    on_cpu = model.device.type == "cpu"
    dtype = torch.float32 if on_cpu else model.dtype
    pool = KvPool(shapes, num_blocks=num_blocks, block_size=spec.settings.block_size, dtype=dtype, device=model.device)
    if on_cpu:
        from sparkinfer.engine.attention.cpu import CpuAttention

        return pool, CpuAttention(pool, threads=threads)
    from sparkinfer.engine.attention.varlen import best_attention

    return pool, best_attention(pool)


def _recordings(
    attention: Attention, pool: KvPool, model: PreTrainedModel, *, is_trial: bool
) -> tuple[str, Callable[[ModelForward], Recordings] | None]:
    """How this kernel's steps are recorded, and what a label says of it; None where they cannot be."""
    padding: dict[str, int] = {"padding_block": pool.num_blocks - 1, "block_size": pool.block_size}
    if model.device.type == "cpu":
        return "", lambda forward: Replays(forward, attention, **padding, patience=0 if is_trial else PATIENCE)
    from sparkinfer.engine.attention.varlen import VarlenAttention

    if not isinstance(attention, VarlenAttention) or not attention.is_recordable:
        return "", None
    return "-graphs", lambda forward: DecodeGraphs(forward, attention, cuda_recorder(), device=model.device, **padding)


def _kv_blocks(
    shapes: Sequence[LayerShape], spec: EngineSpec, model: PreTrainedModel, info: EngineInfo
) -> tuple[int, int]:
    """How many blocks the pool gets, and the longest sequence that then fits."""
    settings, on_cpu = spec.settings, model.device.type == "cpu"
    per_block = block_bytes(shapes, block_size=settings.block_size, dtype=torch.float32 if on_cpu else model.dtype)
    wanted = settings.max_batch_size * -(-info.max_model_len // settings.block_size)
    asked = None if settings.kv_memory is None else settings.kv_memory // ranks_of(model)
    blocks = _least(min(wanted, (asked or _free_for_kv(settings.kv_fraction, model)) // per_block), model)
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
    if model.device.type != "cpu":
        return int(torch.cuda.mem_get_info(model.device)[0] * fraction)
    return min(int(available() * fraction), _CPU_KV_BYTES) // ranks_of(model)


def _least(count: int, model: PreTrainedModel) -> int:
    """Of what the ranks of a split model find, each for itself: a block's number means the same to all of them."""
    if ranks_of(model) == 1:
        return count
    found = torch.tensor([count], device=model.device)
    torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MIN)
    return int(found)


def _context(model: PreTrainedModel, spec: EngineSpec) -> int:
    """The model's own context, or the shorter one that is asked for."""
    own = getattr(probe.text_config(model.config), "max_position_embeddings", None) or _DEFAULT_CONTEXT
    asked = spec.settings.max_model_len
    return int(own) if asked is None else min(int(own), asked)
