"""Greedy tokens of many architectures, packed and not, against transformers' generate."""

from __future__ import annotations

import pytest

from sparkinfer.engine.base import EngineRequest
from sparkinfer.errors import ModelError
from sparkinfer.types import SamplingParams
from tests.oracle.engine import tiny

LENGTHS = (3, 21, 9, 40, 22)
NEW_TOKENS = 12


@pytest.mark.parametrize("kind", tiny.PACKED)
def test_a_packed_model_gives_the_tokens_of_generate(kind: str) -> None:
    model = tiny.model(kind)
    prompts = tiny.prompts(LENGTHS)
    want = [tiny.generated(model, prompt, NEW_TOKENS) for prompt in prompts]
    assert len({tuple(tokens) for tokens in want}) > 1, "the model ignores its prompt; this test would see nothing"
    engine = tiny.engine(model, fallback=False, block_size=4, max_batch_tokens=32)
    assert engine.info.label == "paged/cpu-numba/fp32"
    got = tiny.greedy(engine, prompts, NEW_TOKENS)
    count = tiny.flips(model, prompts, want, got)
    print(f"{kind}: {len(prompts)} prompts, {count} flips by ties")


@pytest.mark.parametrize("kind", tiny.STATIC)
def test_a_model_that_cannot_be_packed_runs_on_the_always_right_path(kind: str) -> None:
    model = tiny.model(kind)
    prompts = tiny.prompts(LENGTHS[:3])
    want = [tiny.generated(model, prompt, NEW_TOKENS) for prompt in prompts]
    engine = tiny.engine(model)
    assert engine.info.label == "static/cpu/fp32"
    assert tiny.greedy(engine, prompts, NEW_TOKENS) == want


def test_the_always_right_path_names_the_row_that_its_next_step_runs() -> None:
    engine = tiny.engine(tiny.model(next(iter(tiny.STATIC))))
    for number, priority in enumerate((0, 5, 1)):
        sampling = SamplingParams(max_tokens=2)
        engine.add(EngineRequest(request_id=number, prompt_ids=(5, 6, 7), sampling=sampling, priority=priority))
    while engine.has_work():
        suspects = engine.running_ids()
        assert [output.request_id for output in engine.step()] == suspects


@pytest.mark.parametrize("kind", tiny.STATIC)
def test_a_model_that_cannot_be_packed_is_refused_without_fallback(kind: str) -> None:
    with pytest.raises(ModelError, match=kind):
        tiny.engine(tiny.model(kind), fallback=False)
