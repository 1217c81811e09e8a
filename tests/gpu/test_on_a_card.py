"""The engine on a GPU: the kernel that it gets, the same tokens as transformers' generate, integer weights, layers in host memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparkinfer.engine.attention.base import AttentionCall, LayerShape
from sparkinfer.engine.attention.reference import ReferenceAttention
from sparkinfer.engine.attention.varlen import VarlenAttention, best_attention
from sparkinfer.engine.create import build_engine, create_engine
from sparkinfer.engine.kv import KvPool
from tests.oracle.engine import tiny
from tests.unit.engine.test_varlen import BLOCK, BLOCKS, HEADS, KV_HEADS, steps

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available() is false"),
]
DIM, NEW_TOKENS = 64, 8
#: bf16 rounds logits to three digits: two that are nearer than this may change places.
CLOSE = 0.05


def pool() -> KvPool:
    shapes = [LayerShape(kv_heads=KV_HEADS, k_dim=DIM, v_dim=DIM)]
    return KvPool(shapes, num_blocks=BLOCKS, block_size=BLOCK, dtype=torch.bfloat16, device=torch.device("cuda:0"))


def test_the_kernel_is_torchs_own_and_not_the_reference() -> None:
    assert best_attention(pool()).name.startswith("varlen")


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_it_gives_what_the_reference_kernel_gives(window: int | None, with_sinks: bool) -> None:
    ours, theirs = best_attention(pool()), ReferenceAttention(pool())
    assert isinstance(ours, VarlenAttention)
    sinks = torch.linspace(-1, 2, HEADS, device="cuda") if with_sinks else None
    call = AttentionCall(scaling=0.3, window=window, sinks=sinks)
    generator = torch.Generator(device="cuda").manual_seed(1)
    for batch in steps():
        q, k, v = (
            torch.randn((batch.num_tokens, heads, DIM), generator=generator, device="cuda").bfloat16()
            for heads in (HEADS, KV_HEADS, KV_HEADS)
        )
        for kernel in (ours, theirs):
            kernel.begin(batch)
        got, want = (kernel.forward(0, q, k, v, call) for kernel in (ours, theirs))
        torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "qwen3", "gpt_oss"])
def test_tokens_are_those_of_generate_but_for_ties_of_bf16(kind: str) -> None:
    model = tiny.model(kind).to("cuda:0", torch.bfloat16)
    prompts = tiny.prompts((5, 20, 33, 1))
    want = [_generated(model, prompt) for prompt in prompts]
    engine = build_engine(model, tiny.spec(fallback=False), dtype="bf16", device="cuda:0", threads=1)
    for prompt, expected, found in zip(prompts, want, tiny.greedy(engine, prompts, NEW_TOKENS), strict=True):
        if expected != found:
            at = next(i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b)
            assert _gap(model, prompt + expected[:at]) < CLOSE, (kind, at)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp8", "int4"])
def test_a_folder_runs_on_the_card_in_each_dtype(tmp_path: Path, dtype: str) -> None:
    tiny.model("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    spec = replace(tiny.spec(device="cuda"), dtype=dtype)
    engine = create_engine(spec, tmp_path)
    assert engine.info.device.startswith("cuda")
    assert all(len(tokens) == NEW_TOKENS for tokens in tiny.greedy(engine, tiny.prompts((5, 20)), NEW_TOKENS))


def test_layers_that_do_not_fit_stay_in_host_memory(tmp_path: Path) -> None:
    tiny.model("llama", num_hidden_layers=6).to(torch.bfloat16).save_pretrained(tmp_path)
    prompts = tiny.prompts((5, 20))
    want = tiny.greedy(create_engine(tiny.spec(device="cuda"), tmp_path), prompts, NEW_TOKENS)
    some = create_engine(tiny.spec(device="cuda", weights_memory=300_000), tmp_path)
    assert tiny.greedy(some, prompts, NEW_TOKENS) == want


@torch.inference_mode()
def _generated(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt], device="cuda:0")
    model.generation_config.eos_token_id = None
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


@torch.inference_mode()
def _gap(model: torch.nn.Module, ids: list[int]) -> float:
    """How far the two best logits lie apart behind these tokens."""
    model.set_attn_implementation("eager")
    best = model(input_ids=torch.tensor([ids], device="cuda:0"), use_cache=False).logits[0, -1].float().topk(2).values
    return float(best[0] - best[1])


def test_decode_steps_are_recorded_once_a_bucket_and_give_the_same_tokens() -> None:
    model, prompts = tiny.model("llama").to("cuda:0", torch.bfloat16), tiny.prompts((5, 20, 33, 1))
    engine = build_engine(model, tiny.spec(device="cuda"), dtype="bf16", device="cuda:0", threads=1)
    assert "-graphs/" in engine.info.label
    found = tiny.greedy(engine, prompts, NEW_TOKENS)
    graphs = engine.runner._recordings
    made = dict(graphs._recordings)
    assert made
    assert tiny.greedy(engine, prompts, NEW_TOKENS) == found
    assert graphs._recordings == made
    graphs.works = False
    assert tiny.greedy(engine, prompts, NEW_TOKENS) == found
