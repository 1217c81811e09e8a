"""Steps of few tokens that are recorded and replayed on the CPU give the bits of steps that are run as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sparkinfer.engine import build, replays
from sparkinfer.engine.attention.base import PackedBatch, filled_up
from tests.oracle.engine import tiny

NEW_TOKENS = 12


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record what is met, so that few steps are many replays."""
    monkeypatch.setattr(build, "PATIENCE", 0)


def engine_of(model: Any, **settings: object) -> Any:
    return tiny.engine(model, fallback=False, **{"block_size": 4, "guess_tokens": 0, **settings})


def replayed(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the number of tokens of each replay, those that fill it up among them."""
    seen: list[int] = []
    real = replays._Recording.replay

    def replay(self: Any, batch: PackedBatch) -> torch.Tensor:
        seen.append(batch.num_tokens)
        return real(self, batch)

    monkeypatch.setattr(replays._Recording, "replay", replay)
    return seen


@pytest.mark.parametrize("kind", tiny.PACKED)
def test_replayed_steps_give_the_tokens_of_generate(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = tiny.model(kind), tiny.prompts((5, 20, 33, 61, 7))
    want = [tiny.generated(model, prompt, NEW_TOKENS) for prompt in prompts]
    engine = engine_of(model)
    seen = replayed(engine, monkeypatch)
    found = tiny.greedy(engine, prompts, NEW_TOKENS)
    assert tiny.flips(model, prompts, want, found) == 0
    assert engine.runner.records
    assert len(seen) >= NEW_TOKENS - 3


def batch(rng: np.random.Generator, lengths: list[int], block_size: int, num_blocks: int) -> PackedBatch:
    """Sequences of so many new tokens, each sampled, behind random contexts, in scattered blocks."""
    contexts = rng.integers(0, 40, len(lengths))
    ends = contexts + lengths
    tables = np.zeros((len(lengths), -(-int(ends.max()) // block_size)), np.int64)
    free = iter(rng.permutation(num_blocks))
    for row, end in zip(tables, ends, strict=True):
        row[: -(-int(end) // block_size)] = [next(free) for _ in range(-(-int(end) // block_size))]
    owner = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.concatenate([np.arange(first, last) for first, last in zip(contexts, ends, strict=True)])
    return PackedBatch(
        token_ids=rng.integers(0, tiny.VOCAB, len(positions)),
        positions=positions,
        slots=tables[owner, positions // block_size] * block_size + positions % block_size,
        query_starts=np.concatenate([[0], np.cumsum(lengths)]),
        context_lens=ends,
        tables=tables,
        sample_rows=np.arange(len(positions)),
    )


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2"])
def test_logits_and_stored_keys_have_the_same_bits_whatever_the_step_is_made_of(kind: str) -> None:
    """Eight tokens are one sequence with seven guesses, eight sequences, and what lies between: one recording serves all."""
    engine = engine_of(tiny.model(kind), kv_memory=2**20)
    runner = engine.runner
    recordings, keys = runner._recordings, runner._attention._keys
    rng = np.random.default_rng(3)
    for lengths in ([8], [1] * 8, [3, 1, 1, 3], [1, 6], [5, 2], [1] * 5, [3], [1, 1, 1], [2, 1], [4], [2], [1, 1]):
        step = batch(rng, lengths, 4, runner.num_blocks)
        before = [each.copy() for each in keys]
        replayed = runner.logits(step)
        stored = [each.copy() for each in keys]
        for each, old in zip(keys, before, strict=True):
            each[...] = old
        runner._recordings = None
        size = next(size for size in replays.TOKENS if size >= step.num_tokens)
        full = replace(
            filled_up(step, size, padding_block=runner.num_blocks, block_size=4), sample_rows=np.arange(size)
        )
        assert torch.equal(runner.logits(full)[: step.num_tokens], replayed)
        assert all(np.array_equal(each, other) for each, other in zip(keys, stored, strict=True))
        runner._recordings = recordings
    assert recordings.recorded == [2, 4, 8]
    assert len(recordings._proved) == 1


def test_prompts_and_large_steps_run_as_they_are() -> None:
    runner = engine_of(tiny.model("llama")).runner
    rng = np.random.default_rng(3)
    large = batch(rng, [1] * (replays.TOKENS[-1] + 1), 4, runner.num_blocks)
    assert runner._recordings.run(large) is None
    prompt = batch(rng, [9], 4, runner.num_blocks)
    prompt.sample_rows.resize(1, refcheck=False)
    assert runner._recordings.run(prompt) is None


def test_a_step_is_met_some_times_before_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PATIENCE", 2)
    runner = engine_of(tiny.model("llama")).runner
    recorded = []
    for count in (5, 8, 6, 7):  # one recording serves them
        runner.logits(batch(np.random.default_rng(3), [1] * count, 4, runner.num_blocks))
        recorded.append(runner._recordings.recorded)
    assert recorded == [[], [], [8], [8]]


class Looks(torch.nn.Module):
    """Asks Python what to do, as a model with a threshold would."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * (2.0 if float(hidden.max()) > 1e9 else 1.0)


class Draws(torch.nn.Module):
    """Adds nothing, which it draws."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + 0.0 * torch.rand_like(hidden)


class Hides(torch.nn.Module):
    """Computes where torch does not see it and nobody noted the call."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(hidden)
        np.copyto(out.numpy(), hidden.numpy())
        return out


class Chooses(torch.nn.Module):
    """Works on those rows only that a mask names, here on all."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        chosen = hidden[..., 0] < 1e9
        hidden = hidden.clone()
        hidden[chosen] = hidden[chosen] * 1.0
        return hidden


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Looks, "asks for a number"),
        (Draws, "draws numbers"),
        (Hides, "other logits"),
        (Chooses, "shape of numbers"),
    ],
)
def test_what_cannot_be_replayed_is_not_recorded_and_answers_as_before(
    module: type[torch.nn.Module], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, prompts = tiny.model("llama"), tiny.prompts((5, 20))
    want = [tiny.generated(model, prompt, NEW_TOKENS) for prompt in prompts]
    model.model.layers[1].register_forward_hook(lambda _layer, _given, found: changed(found))
    change = module()

    def changed(hidden: Any) -> Any:
        return change(hidden)

    with caplog.at_level("INFO", logger="sparkinfer"):
        engine = engine_of(model)
        found = tiny.greedy(engine, prompts, NEW_TOKENS)
    assert not engine.runner.records
    assert tiny.flips(model, prompts, want, found) == 0
    assert reason in caplog.text


def test_steps_whose_numbers_do_not_fit_the_arena_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = tiny.model("llama"), tiny.prompts((5, 20, 33, 61, 7))
    want = [tiny.generated(model, prompt, NEW_TOKENS) for prompt in prompts]
    monkeypatch.setattr(replays, "ARENA_BYTES", 60_000)
    engine = engine_of(model)
    found = tiny.greedy(engine, prompts, NEW_TOKENS)
    recordings = engine.runner._recordings
    assert recordings._most == 4
    engine.runner.logits(batch(np.random.default_rng(3), [1], 4, engine.runner.num_blocks))
    assert 1 in recordings.recorded
    assert tiny.flips(model, prompts, want, found) == 0


def test_strict_and_compiled_engines_record_nothing() -> None:
    assert not engine_of(tiny.model("llama"), strict=True).runner.records
