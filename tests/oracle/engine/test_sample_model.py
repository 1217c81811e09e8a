"""The sample model on 100 real reviews behind one instruction: greedy tokens are those of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel

from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.base import Engine, EngineRequest
from sparkinfer.engine.create import create_engine
from sparkinfer.model import fetch, load, resolve
from sparkinfer.types import FinishReason, SamplingParams
from tests.oracle.engine import tiny

REVIEWS = Path(__file__).parents[3] / "examples" / "data" / "reviews.parquet"
INSTRUCTION = (
    "A customer wrote about something bought:\n{}\nIs the customer's verdict great or something other than great?"
)
ROWS = 100
GENERATED_ROWS = 4
NEW_TOKENS = 8


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch(resolve("sample"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    made = create_engine(EngineSpec(model=resolve("sample"), settings=EngineSettings(max_model_len=2048)), folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(folder: Path) -> PreTrainedModel:
    return load(folder, dtype="fp32", device="cpu")


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [t for t in pq.read_table(REVIEWS, columns=["text"])["text"].to_pylist() if len(t) <= 250][:ROWS]
    assert len(texts) == ROWS
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": INSTRUCTION.format(text)}], add_generation_prompt=True, return_dict=False
        )
        for text in texts
    ]


@pytest.mark.timeout(1200)  # half a minute on idle cores
@torch.inference_mode()
def test_greedy_tokens_are_those_of_transformers(
    engine: Engine, model: PreTrainedModel, prompts: list[list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each token is the oracle's best after what came before it, which is what greedy generate gives; some rows are also generated."""
    assert engine.info.label == "paged/cpu-numba/fp32"
    got = tiny.greedy(engine, prompts, NEW_TOKENS)
    assert engine.stats()["cached_tokens"] > 0
    flips = 0
    for prompt, tokens in zip(prompts, got, strict=True):
        ids = torch.tensor([prompt + tokens[:-1]])
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(tokens)).logits[0]
        chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        gaps = logits.amax(1) - chosen
        assert float(gaps.max()) < tiny.CLOSE
        flips += int((gaps > 0).any())
    for prompt, tokens in zip(prompts[:GENERATED_ROWS], got, strict=False):
        assert tiny.flips(model, [prompt], [tiny.generated(model, prompt, NEW_TOKENS)], [tokens]) == 0
    with capsys.disabled():
        print(f"\nsample model: {ROWS} rows of {NEW_TOKENS} tokens, {flips} rows with a tie decided by rounding")


def test_closed_choices_end_whole_and_carry_logprobs(engine: Engine, prompts: list[list[int]]) -> None:
    choices = ((12, 13, 14), (12, 15), (16,))
    requests = [
        EngineRequest(
            request_id=1000 + index,
            prompt_ids=prompt,
            sampling=SamplingParams(max_tokens=1, temperature=2.0, logprobs=1),
            choices=choices,
            noise_key=index,
        )
        for index, prompt in enumerate(prompts[:12])
    ]
    for answer in tiny.answers(engine, requests):
        assert tuple(answer.token_ids) in choices
        assert len(answer.logprobs) == len(answer.token_ids)
        assert answer.last is not None
        assert answer.last.finish_reason is FinishReason.STOP
