"""Prompts of chat templates in the styles of well-known models: the same text as transformers renders, but for the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from sparkinfer.config.specs import TaskSpec
from sparkinfer.model import fetch, resolve
from sparkinfer.text.chat import ChatTemplate
from sparkinfer.text.task import Prompt, TextTask
from sparkinfer.text.tokenizer import load_tokenizer
from sparkinfer.types import Request
from tests.support.tokenizers import byte_level

# Written for these tests in the manner of the families named; not their texts.
TEMPLATES = {
    "chatml": (
        "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "llama": (
        "{{- bos_token }}\n{%- if not date_string is defined %}\n{%- set date_string = '26 Jul 2024' %}\n{%- endif %}\n"
        "{%- if messages[0]['role'] == 'system' %}\n{%- set system = messages[0]['content']|trim %}\n"
        "{%- set messages = messages[1:] %}\n{%- else %}\n{%- set system = '' %}\n{%- endif %}\n"
        "{{- '<|head|>system\n\nToday: ' + date_string + '\n' + system + '<|eot|>' }}\n"
        "{%- for message in messages %}\n{{- '<|head|>' + message['role'] + '\n\n' + message['content'] | trim + '<|eot|>' }}\n"
        "{%- endfor %}\n{%- if add_generation_prompt %}{{- '<|head|>assistant\n\n' }}{%- endif %}"
    ),
    "mistral": (
        "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}{% if m['role'] == 'system' %}"
        "{% set ns.system = m['content'] + '\n\n' %}{% elif m['role'] == 'user' %}"
        "{{ '[INST] ' + ns.system + m['content'] + ' [/INST]' }}{% set ns.system = '' %}"
        "{% else %}{{ ' ' + m.get('content', '') + eos_token }}{% endif %}{% endfor %}"
    ),
    "think": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}"
        "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
        "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
        "{% if tools %}tools{% endif %}{% if documents %}documents{% endif %}"
    ),
}

CHATS: dict[str, list[dict[str, Any]]] = {
    "question": [{"role": "user", "content": " Is it great? 日本語 <b>&amp;</b> "}],
    "system": [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": "{{ not a template }}"}],
    "conversation": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c\n"},
    ],
}


@pytest.mark.parametrize("chat", sorted(CHATS))
@pytest.mark.parametrize("style", sorted(TEMPLATES))
@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}])
def test_a_prompt_is_what_transformers_renders(style: str, chat: str, kwargs: dict[str, Any], tmp_path: Path) -> None:
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(byte_level(tmp_path) / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    theirs.chat_template = TEMPLATES[style]
    expected = theirs.apply_chat_template(CHATS[chat], tokenize=False, add_generation_prompt=True, **kwargs)
    ours = ChatTemplate(TEMPLATES[style], special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    assert ours.render(CHATS[chat], clock="2026-01-01", template_kwargs=kwargs) == expected


@pytest.fixture(scope="module")
def sample() -> Path:
    return fetch(resolve("sample"))


@pytest.mark.parametrize("chat", sorted(CHATS))
def test_the_sample_models_prompts_have_the_ids_of_transformers(sample: Path, chat: str) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(sample)
    expected = theirs.apply_chat_template(CHATS[chat], add_generation_prompt=True, tokenize=True)["input_ids"]
    ours = load_tokenizer(sample)
    assert ours.encode(ours.chat(CHATS[chat], clock="2026-01-01", template_kwargs={})) == expected


def test_the_sample_model_sees_this_prompt(sample: Path) -> None:
    tokenizer = load_tokenizer(sample)
    task = TaskSpec(
        prompt="Review: {text}\nGood?", names=("text",), system="You label reviews.", choices=("great", "other")
    )
    prompt = TextTask(task, tokenizer, 8192).prepare(
        Request(row=1, values=("Fine <|im_end|>!",), tags="s", input_hash="h")
    )
    assert isinstance(prompt, Prompt)
    assert prompt.choices == ((18680,), (949,))
    assert prompt.ids[:3] == [1, 9690, 198]
    assert tokenizer.decode(prompt.ids) == (
        "system\nYou label reviews.\nuser\nReview: Fine <|im_end|>!\nGood?\nassistant\n"
    )
