"""Greedy tokens do not depend on the batch, the chunks, the prefix cache, the block size or strict mode; and the tests would see it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sparkinfer.engine.attention import cpu
from sparkinfer.engine.attention.base import AttentionCall, LayerShape, PackedBatch, pack
from sparkinfer.engine.attention.cpu import CpuAttention
from sparkinfer.engine.attention.reference import ReferenceAttention
from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.kv import KvPool
from sparkinfer.engine.plan import PlannedSequence
from sparkinfer.engine.sequence import Sequence
from sparkinfer.errors import SelfCheckFailed
from sparkinfer.types import SamplingParams
from tests.oracle.engine import tiny

LENGTHS = (25, 40, 3, 31, 26, 64, 40)
NEW_TOKENS = 10


@pytest.fixture(scope="module")
def oracle() -> tuple[Any, list[list[int]], list[list[int]]]:
    model = tiny.model("mistral", sliding_window=24)
    prompts = tiny.prompts([max(n, 20) for n in LENGTHS], shared=18)
    return model, prompts, [tiny.generated(model, prompt, NEW_TOKENS) for prompt in prompts]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_batch_size": 1},
        {"max_batch_tokens": 7},
        {"block_size": 1},
        {"block_size": 5, "max_batch_tokens": 11},
        {"block_size": 256},
        {"prefix_cache": False},
        {"guess_tokens": 0},
        {"guess_tokens": 100},
        {"strict": True},
        {"strict": True, "max_batch_tokens": 13, "block_size": 4},
    ],
    ids=str,
)
def test_greedy_tokens_do_not_depend_on_how_the_engine_batches(oracle: Any, settings: dict[str, Any]) -> None:
    model, prompts, want = oracle
    engine = tiny.engine(model, fallback=False, **settings)
    first = tiny.greedy(engine, prompts, NEW_TOKENS)
    again = tiny.greedy(engine, prompts[::-1], NEW_TOKENS)[::-1]  # now with cached prefixes, in another order
    flips = tiny.flips(model, prompts, want, first) + tiny.flips(model, prompts, want, again)
    print(f"{settings}: {flips} flips by ties")
    if settings.get("prefix_cache", True) and settings.get("block_size", 16) <= 16:
        assert engine.stats()["cached_tokens"] > 0


@pytest.mark.parametrize("strict", [False, True])
def test_guessed_tokens_are_those_that_would_have_come(strict: bool) -> None:
    """The long answers of a random model with small weights repeat themselves; with guesses they take fewer steps and stay the same."""
    model = tiny.model("qwen2", initializer_range=0.05)
    prompts = tiny.prompts((20, 33, 40))
    want = [tiny.generated(model, prompt, 80) for prompt in prompts]
    steps = {}
    for guess_tokens in (0, 64):
        engine = tiny.engine(model, fallback=False, strict=strict, guess_tokens=guess_tokens)
        flips = tiny.flips(model, prompts, want, tiny.greedy(engine, prompts, 80))
        stats = engine.stats()
        steps[guess_tokens] = stats["steps"]
        print(f"strict={strict} guess_tokens={guess_tokens}: {stats['steps']} steps, {stats['guesses_right']} of "
              f"{stats['guessed_tokens']} guesses right, {flips} flips by ties")  # fmt: skip
    assert steps[64] < steps[0]


def test_strict_logits_are_the_same_bits_alone_and_in_company(oracle: Any) -> None:
    model, prompts, _ = oracle
    requests = [
        EngineRequest(request_id=i, prompt_ids=p, sampling=SamplingParams(max_tokens=6, logprobs=1))
        for i, p in enumerate(prompts)
    ]
    together = tiny.answers(tiny.engine(model, fallback=False, strict=True, prefix_cache=False), requests)
    for request, answer in zip(requests, together, strict=True):
        alone = tiny.answers(tiny.engine(model, fallback=False, strict=True, prefix_cache=False), [request])[0]
        assert alone.token_ids == answer.token_ids
        assert alone.logprobs == answer.logprobs


class _CrossedTables(CpuAttention):
    """A kernel with a fault planted: it reads two sequences' first blocks crosswise."""

    def begin(self, batch: PackedBatch) -> None:
        super().begin(batch)
        if len(batch.tables) > 1:
            self._tables = batch.tables.copy()
            self._tables[[0, 1], 0] = batch.tables[[1, 0], 0]


def test_a_broken_block_table_is_seen_by_the_self_check(oracle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, _ = oracle
    monkeypatch.setattr(cpu, "CpuAttention", _CrossedTables)
    with pytest.raises(SelfCheckFailed, match="other logits"):
        tiny.engine(model, fallback=False)
    assert tiny.engine(model).info.label == "static/cpu/fp32"


class _Raises(CpuAttention):
    """A kernel that a model's call does not fit."""

    def begin(self, batch: PackedBatch) -> None:
        raise IndexError("index 7 is out of bounds")


def test_a_model_whose_packed_prompts_raise_is_run_alone(oracle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts, want = oracle
    monkeypatch.setattr(cpu, "CpuAttention", _Raises)
    with pytest.raises(SelfCheckFailed, match="packed prompts raise IndexError: index 7"):
        tiny.engine(model, fallback=False)
    engine = tiny.engine(model)
    assert engine.info.label == "static/cpu/fp32"
    assert tiny.greedy(engine, prompts[:1], len(want[0])) == want[:1]
    stats = engine.stats()
    assert (stats["requests"], stats["finished"], stats["failed"], stats["completion_tokens"]) == (
        1,
        1,
        0,
        len(want[0]),
    )


def test_rows_without_numbers_do_not_count_as_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "CpuAttention", _Raises)
    model = tiny.model("llama")
    engine = tiny.engine(model)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    engine.add(EngineRequest(request_id=0, prompt_ids=[5, 6], sampling=SamplingParams(max_tokens=4)))
    (output,) = engine.step()
    assert output.error is not None
    assert output.error[0] == "INFERENCE_FAILED"
    stats = engine.stats()
    assert (stats["finished"], stats["failed"], stats["completion_tokens"]) == (0, 1, 0)


def test_a_window_that_never_reaches_attention_is_seen_by_the_self_check() -> None:
    model = tiny.model("mistral")
    model.config.sliding_window = None  # attention modules read it at each call, as a model without one would
    object.__setattr__(model.config, "attention_chunk_size", 16)
    model.config.layer_types = ["chunked_attention"] * 3
    with pytest.raises(SelfCheckFailed, match="chunks of 16"):
        tiny.engine(model, fallback=False)


def test_a_rotary_embedding_that_looks_at_the_whole_batch_is_not_packed_beyond_its_threshold() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = tiny.model("llama", rope_parameters=rope, max_position_embeddings=64)
    with pytest.raises(SelfCheckFailed, match="max_model_len=32"):
        model.config.rope_parameters["original_max_position_embeddings"] = 32
        tiny.engine(model, fallback=False)
    assert tiny.engine(model, fallback=False, max_model_len=32).info.max_model_len == 32


@pytest.mark.parametrize("block_size", [1, 5, 16])
@pytest.mark.parametrize(("heads", "kv_heads", "k_dim", "v_dim"), [(9, 3, 16, 16), (4, 4, 24, 8)])
@pytest.mark.parametrize(
    "extra", [{}, {"window": 7}, {"softcap": 3.0}, {"sinks": True}, {"window": 130, "softcap": 2.0}], ids=str
)
def test_the_cpu_kernel_agrees_with_the_reference(
    block_size: int, heads: int, kv_heads: int, k_dim: int, v_dim: int, extra: dict[str, Any]
) -> None:
    generator = torch.Generator().manual_seed(1)
    items = _items([(0, 1), (9, 1), (300, 1), (0, 45), (17, 19), (140, 33)], block_size)
    batch = pack(items, block_size)
    num_blocks = sum(len(item.sequence.block_ids) for item in items)
    shape = LayerShape(kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim)
    pools = [
        KvPool([shape], num_blocks=num_blocks, block_size=block_size, dtype=torch.float32, device=torch.device("cpu"))
        for _ in "ab"
    ]
    # The kernel keeps the keys of a block transposed.
    turned = pools[1].keys[0].view(num_blocks, kv_heads, k_dim, block_size).transpose(2, 3)
    for mine, other in ((pools[0].keys[0], turned), (pools[0].values[0], pools[1].values[0])):
        other.copy_(mine.normal_(generator=generator))
    query, key, value = (
        torch.randn((batch.num_tokens, n, d), generator=generator)
        for n, d in ((heads, k_dim), (kv_heads, k_dim), (kv_heads, v_dim))
    )
    sinks = torch.randn(heads, generator=generator) if "sinks" in extra else None
    call = AttentionCall(scaling=k_dim**-0.5, sinks=sinks, window=extra.get("window"), softcap=extra.get("softcap"))
    outputs = []
    for kernel in (ReferenceAttention(pools[0]), CpuAttention(pools[1], threads=2)):
        kernel.begin(batch)
        outputs.append(kernel.forward(0, query, key, value, call))
    assert torch.equal(pools[0].keys[0], turned)
    assert torch.equal(pools[0].values[0], pools[1].values[0])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=2e-6)


def _items(spans: list[tuple[int, int]], block_size: int) -> list[PlannedSequence]:
    """(tokens before, tokens of this step) of each sequence, over blocks in random order."""
    needed = [-(-(start + count) // block_size) for start, count in spans]
    blocks = np.random.default_rng(2).permutation(sum(needed)).tolist()
    items = []
    for (start, count), number in zip(spans, needed, strict=True):
        request = EngineRequest(request_id=len(items), prompt_ids=[3] * (start + count), sampling=SamplingParams())
        sequence = Sequence.from_request(request)
        sequence.block_ids = [blocks.pop() for _ in range(number)]
        items.append(PlannedSequence(sequence, start, count, True))
    return items


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_context_of_hardly_a_token_is_packed_too(length: int) -> None:
    assert tiny.engine(tiny.model("llama"), max_model_len=length).info.label == "paged/cpu-numba/fp32"


def test_a_prompt_without_tokens_fails_on_the_slow_path_as_on_the_packed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "CpuAttention", _Raises)
    engine = tiny.engine(tiny.model("llama"))
    assert engine.info.label.startswith("static")
    engine.add(EngineRequest(request_id=0, prompt_ids=[], sampling=SamplingParams(max_tokens=2)))
    (output,) = engine.step()
    assert output.error is not None
    assert output.error[0] == "EMPTY_PROMPT"
    assert not engine.has_work()
