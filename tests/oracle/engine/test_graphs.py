"""Recorded decode steps on a CPU: buckets, padding and the tensors of a recording, with a recorder that runs its forward again on those
tensors and the documented ``varlen_attn``. On a card the same engine records for real (``make test-gpu``)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sparkinfer.config.settings import EngineSettings
from sparkinfer.engine import build, probe
from sparkinfer.engine.attention import varlen
from sparkinfer.engine.attention.base import PackedBatch
from sparkinfer.engine.attention.varlen import VarlenAttention
from sparkinfer.engine.build import about, sampler_of
from sparkinfer.engine.engine import PackedEngine
from sparkinfer.engine.graphs import ROWS, DecodeGraphs, bucket_of
from sparkinfer.engine.kv import KvPool
from sparkinfer.engine.runner import PackedRunner
from tests.oracle.engine import tiny
from tests.unit.engine.test_varlen import documented

NEW_TOKENS = 9
BLOCKS = 96


class Again:
    """Records by keeping the forward: a replay runs it on whatever its tensors hold then."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.replays = 0

    def __call__(self, forward: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        logits = forward().clone()
        self.rows.append(len(logits))

        def replay() -> None:
            self.replays += 1
            logits.copy_(forward())

        return replay, logits


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", documented)


def engine_of(model: Any, recorder: Any, **settings: Any) -> PackedEngine:
    """A packed engine as a card has it, but for the device."""
    shapes = probe.attention_layers(model)
    pool = KvPool(shapes, num_blocks=BLOCKS + 1, block_size=4, dtype=torch.float32, device=torch.device("cpu"))
    attention = VarlenAttention(pool, paged=True)
    runner = PackedRunner(
        model,
        num_blocks=BLOCKS,
        block_size=4,
        attention=attention,
        sampler=sampler_of(model),
        info=about(model, tiny.spec(max_model_len=96), dtype="fp32", device="cpu"),
        recordings=graphs_of(attention, recorder, num_blocks=BLOCKS, block_size=4),
    )
    return PackedEngine(
        runner, EngineSettings(**{"block_size": 4, "batch_timeout_ms": 0, "guess_tokens": 0, **settings})
    )


def graphs_of(attention: VarlenAttention, recorder: Any, **sizes: int) -> Callable[[Any], DecodeGraphs]:
    """What a runner is given on a card, with another recorder."""
    padding_block, block_size = sizes["num_blocks"], sizes["block_size"]
    return lambda forward: DecodeGraphs(
        forward,
        attention,
        recorder,
        device=torch.device("cpu"),
        padding_block=padding_block,
        block_size=block_size,
    )


@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt_oss"])
def test_recorded_steps_give_the_tokens_of_generate(kind: str) -> None:
    model, prompts = tiny.model(kind), tiny.prompts((5, 20, 33, 61, 7))
    want = [tiny.generated(model, prompt, NEW_TOKENS) for prompt in prompts]
    recorder = Again()
    engine = engine_of(model, recorder)
    found = tiny.greedy(engine, prompts, NEW_TOKENS)
    assert recorder.replays >= NEW_TOKENS - 1
    assert set(recorder.rows) <= set(ROWS)
    made = len(recorder.rows)
    assert tiny.greedy(engine, prompts, NEW_TOKENS) == found
    assert len(recorder.rows) == made  # each bucket is recorded once
    assert tiny.flips(model, prompts, want, found) == 0


def test_other_steps_between_recorded_ones_change_nothing() -> None:
    """Prompts in chunks of 7 tokens run beside decodes, and rows end at different times: every bucket below is met."""
    model, prompts = tiny.model("llama"), tiny.prompts((5, 40, 9, 33))
    want = [tiny.generated(model, prompt, NEW_TOKENS) for prompt in prompts]
    recorder = Again()
    found = tiny.greedy(engine_of(model, recorder, max_batch_tokens=7, prefix_cache=False), prompts, NEW_TOKENS)
    assert tiny.flips(model, prompts, want, found) == 0
    assert recorder.replays > 0


@pytest.mark.parametrize("kind", ["gemma2", "llama"])
def test_what_cannot_be_recorded_runs_as_it_is(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """gemma2's soft caps go to the reference kernel; the llama's recorder fails as a forward that asks the device would."""
    model, prompts = tiny.model(kind), tiny.prompts((5, 20))
    want = [tiny.generated(model, prompt, NEW_TOKENS) for prompt in prompts]

    def fails(_forward: Callable[[], torch.Tensor]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    engine = engine_of(model, Again() if kind == "gemma2" else fails)
    assert engine.runner.records, "as far as is known"
    found = tiny.greedy(engine, prompts, NEW_TOKENS)
    assert not engine.runner.records
    assert tiny.flips(model, prompts, want, found) == 0
    (said,) = [record.getMessage() for record in caplog.records if "not recorded" in record.getMessage()]
    assert ("reference kernel" in said) == (kind == "gemma2")


def test_the_label_says_graphs_only_where_steps_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card's engine, but for the device: gemma2's soft caps go to a kernel that cannot be recorded, which the self-check meets."""

    def recordings(attention: Any, pool: KvPool, model: Any, *, is_trial: bool) -> tuple[str, Any]:
        return "-graphs", graphs_of(attention, Again(), num_blocks=pool.num_blocks - 1, block_size=pool.block_size)

    monkeypatch.setattr(build, "_recordings", recordings)
    monkeypatch.setattr(build, "_pool", paged_pool)
    labels = {kind: tiny.engine(tiny.model(kind), fallback=False).info.label for kind in ("llama", "gemma2")}
    assert labels == {"llama": "paged/cpu-varlen-graphs/fp32", "gemma2": "paged/cpu-varlen/fp32"}


def paged_pool(shapes: Any, num_blocks: int, spec: Any, model: Any, threads: int) -> tuple[KvPool, VarlenAttention]:
    """As on a card."""
    size = spec.settings.block_size
    pool = KvPool(shapes, num_blocks=num_blocks, block_size=size, dtype=torch.float32, device=torch.device("cpu"))
    return pool, VarlenAttention(pool, paged=True)


def decode(rows: int, widest: int) -> PackedBatch:
    """A decode step of so many rows."""
    numbers = np.arange(rows)
    return PackedBatch(
        token_ids=numbers,
        positions=numbers,
        slots=numbers,
        query_starts=np.arange(rows + 1),
        context_lens=numbers + 1,
        tables=np.zeros((rows, widest), np.int64),
        sample_rows=numbers,
    )


def test_a_step_goes_into_the_smallest_bucket_that_holds_it() -> None:
    for rows in range(1, ROWS[-1] + 1):
        for widest in (1, 8, 9, 128):
            bucket = bucket_of(decode(rows, widest))
            assert bucket is not None
            assert bucket[0] == min(n for n in ROWS if n >= rows)
            assert bucket[1] >= widest
            assert bucket[1] == 8 or bucket[1] < 2 * widest
    assert bucket_of(decode(ROWS[-1] + 1, 1)) is None
    assert all(after <= 2 * before for before, after in itertools.pairwise(ROWS))
