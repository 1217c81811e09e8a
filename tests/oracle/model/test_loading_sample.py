"""The sample model after its conversion from GGUF: the right tokens, the right end, sensible answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sparkinfer.model import fetch, load, memory, resolve


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch(resolve("sample"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_the_tokenizer_splits_digits_as_the_model_was_trained(tokenizer) -> None:
    assert tokenizer.tokenize("12345 67") == ["1", "2", "3", "4", "5", "Ġ", "6", "7"]
    assert tokenizer.tokenize("a  5") == ["a", "ĠĠ", "5"]
    assert tokenizer.tokenize("a  b") == ["a", "Ġ", "Ġb"]
    assert tokenizer.model_max_length == 8192


def test_the_chat_template_ends_turns_with_the_stop_token(folder: Path, tokenizer) -> None:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    generation = json.loads((folder / "generation_config.json").read_text())
    assert tokenizer.convert_ids_to_tokens(generation["eos_token_id"]) == "<|im_end|>"
    assert tokenizer.encode("<|im_end|>") == [2]


def test_embeddings_are_tied_and_weights_stored_once(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert "_model_name_or_path" not in config
    assert memory.folder_weights_bytes(folder) == 134_515_008 * 4


def test_it_answers_a_plain_question(folder: Path, tokenizer) -> None:
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        ids = load(folder).generate(**inputs, max_new_tokens=16, do_sample=False)[0]
    assert tokenizer.decode(ids[inputs["input_ids"].shape[1] :]) == "The capital of France is Paris.<|im_end|>"
