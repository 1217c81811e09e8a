"""From a row's values to a prompt, or to the row's own failure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sparkinfer.config.specs import TaskSpec
from sparkinfer.errors import InvalidConfig, InvalidTemplate
from sparkinfer.text.task import Prompt, TextTask
from sparkinfer.text.tokenizer import ByteTokenizer
from sparkinfer.types import Completion, FinishReason, Request, SamplingParams

BYTES = ByteTokenizer()


class PlainTokenizer(ByteTokenizer):
    """A byte tokenizer of a model without a chat template."""

    has_chat_template = False
    takes_system = False

    def chat(self, messages: Any, *, clock: str, template_kwargs: Any) -> str:
        return "\n\n".join(str(message["content"]) for message in messages)


class ControlTokenizer(ByteTokenizer):
    """A byte tokenizer with one control token: the text <END> is id 2."""

    control_tokens = frozenset({"<END>"})

    def encode(self, text: str, *, bos: bool = False, control: bool = True) -> list[int]:
        parts = text.split("<END>") if control else [text]
        ids = super().encode(parts[0], bos=bos)
        for part in parts[1:]:
            ids += [2, *super().encode(part)]
        return ids


def text_task(*, tokenizer: Any = BYTES, context: int = 500, **fields: Any) -> TextTask:
    return TextTask(TaskSpec(**{"prompt": "Q: {text}", "names": ("text",), **fields}), tokenizer, context)


def request(*values: str | None, tags: str | None = None, **fields: Any) -> Request:
    found = "".join("0" if value is None else "s" for value in values)
    return Request(row=7, values=values, tags=tags or found, input_hash="h", **fields)


def shown(prompt: Prompt | Completion, tokenizer: ByteTokenizer = BYTES) -> str:
    assert isinstance(prompt, Prompt), prompt
    return tokenizer.decode(prompt.ids)


def failed(completion: Prompt | Completion) -> Completion:
    assert isinstance(completion, Completion)
    assert (completion.row, completion.input_hash) == (7, "h")
    return completion


def test_the_template_goes_through_the_chat_template_with_the_system_message_first() -> None:
    task = text_task(prompt="{a} and {b}", names=("a", "b"), system="Be brief.")
    assert shown(task.prepare(request("x", None))) == "system: Be brief.\nuser: x and \nassistant:"


def test_without_a_prompt_the_one_value_is_the_user_message() -> None:
    assert shown(text_task(prompt=None).prepare(request("{hi}"))) == "user: {hi}\nassistant:"


def test_a_plain_prompt_begins_with_bos_and_has_no_markup() -> None:
    prompt = text_task(tokenizer=PlainTokenizer(), system="S").prepare(request("hi"))
    assert isinstance(prompt, Prompt)
    assert prompt.ids[0] == 1
    assert shown(prompt) == "S\n\nQ: hi"


def test_a_system_message_without_a_place_goes_before_the_first_message() -> None:
    class NoSystem(ByteTokenizer):
        takes_system = False

    assert shown(text_task(tokenizer=NoSystem(), system="S").prepare(request("hi"))) == "user: S\n\nQ: hi\nassistant:"


def test_messages_are_the_chat_and_their_own_system_message_wins() -> None:
    task = text_task(prompt=None, system="mine")
    messages = '[{"role":"system","content":"theirs"},{"role":"user","content":"hi"}]'
    assert shown(task.prepare(request(messages, tags="m"))) == "system: theirs\nuser: hi\nassistant:"
    messages = '[{"role":"user","content":"hi"},{"role":"assistant","content":null}]'
    assert shown(task.prepare(request(messages, tags="m"))) == "system: mine\nuser: hi\nassistant: \nassistant:"


@pytest.mark.parametrize("value", ["[]", "no json", '[{"content":"x"}]'])
def test_bad_messages_fail_their_row(value: str) -> None:
    completion = failed(text_task(prompt=None).prepare(request(value, tags="m")))
    assert completion.error_code == "INVALID_MESSAGES"
    assert completion.finish_reason is FinishReason.ERROR
    assert completion.result is None


def test_messages_inside_a_template_fail_their_row() -> None:
    assert failed(text_task().prepare(request("[]", tags="m"))).error_code == "INVALID_MESSAGES"


def test_a_rows_params_go_over_the_tasks() -> None:
    prompt = text_task(sampling=SamplingParams(max_tokens=9)).prepare(
        request("x", params_json='{"temperature":"0x1.8p-1"}')
    )
    assert isinstance(prompt, Prompt)
    assert (prompt.sampling.max_tokens, prompt.sampling.temperature) == (9, 0.75)


@pytest.mark.parametrize("params", ['{"max_tokens":0}', '{"tokens":3}', "[1]", "x", '{"top_p":"much"}'])
def test_bad_params_fail_their_row(params: str) -> None:
    completion = failed(text_task().prepare(request("x", params_json=params, warnings=("INVALID_UTF8",))))
    assert completion.error_code == "INVALID_PARAMS"
    assert completion.warnings == ("INVALID_UTF8",)


def test_max_tokens_that_leave_no_room_for_a_prompt_fail_the_row_clearly() -> None:
    completion = failed(text_task(context=50, sampling=SamplingParams(max_tokens=50)).prepare(request("x")))
    assert completion.error_code == "INVALID_PARAMS"
    assert "context of 50 tokens" in (completion.error_message or "")


def test_a_prompt_beyond_the_context_is_an_error_or_is_skipped() -> None:
    task = {"context": 60, "sampling": SamplingParams(max_tokens=10)}
    completion = failed(text_task(**task).prepare(request("x" * 100)))
    assert (completion.error_code, completion.finish_reason) == ("PROMPT_TOO_LONG", FinishReason.ERROR)
    skipped = failed(text_task(**task, on_overflow="skip").prepare(request("x" * 100)))
    assert (skipped.error_code, skipped.finish_reason) == (None, FinishReason.SKIPPED)
    assert skipped.warnings == ("PROMPT_TOO_LONG",)


def test_cutting_takes_the_rows_text_and_leaves_prompt_and_markup() -> None:
    task = text_task(
        context=40,
        sampling=SamplingParams(max_tokens=10),
        on_overflow="truncate_right",
        names=("text", "n"),
        prompt="{text} #{n}",
    )
    prompt = task.prepare(request("abcdefghijklmnopqrst", "12345", tags="si"))
    assert shown(prompt) == "user: abcdef #12345\nassistant:"
    assert isinstance(prompt, Prompt)
    assert prompt.warnings == ("TRUNCATED_INPUT: kept 6 of 20 characters",)
    assert len(prompt.ids) + prompt.sampling.max_tokens == 40


def test_of_messages_only_what_the_user_said_is_cut() -> None:
    task = text_task(context=60, prompt=None, sampling=SamplingParams(max_tokens=10), on_overflow="truncate_left")
    messages = '[{"role":"system","content":"keep this"},{"role":"user","content":"' + "x" * 80 + 'END"}]'
    text = shown(task.prepare(request(messages, tags="m")))
    assert text.startswith("system: keep this\nuser: xx")
    assert text.endswith("xEND\nassistant:")


def test_choices_leave_room_for_the_longest_of_them_only() -> None:
    task = text_task(
        context=50, choices=("good", "excellent"), sampling=SamplingParams(max_tokens=256, ignore_eos=True)
    )
    prompt = task.prepare(request("x"))
    assert isinstance(prompt, Prompt)
    assert prompt.choices == (tuple(BYTES.encode("good")), tuple(BYTES.encode("excellent")))
    assert prompt.sampling.max_tokens == len("excellent") + 1
    assert prompt.stop_ids == {2}
    output = task.stream(prompt)
    output.push(prompt.choices[1])
    assert output.close(FinishReason.STOP).result == "excellent"


def test_behind_a_plain_prompt_a_choice_begins_with_a_space_unless_there_is_one() -> None:
    task = text_task(tokenizer=PlainTokenizer(), choices=("yes", "no"), prompt="{text}")
    for text, lead in (("Answer:", " "), ("Answer:\n", "")):
        prompt = task.prepare(request(text))
        assert isinstance(prompt, Prompt)
        assert prompt.choices == (tuple(BYTES.encode(lead + "yes")), tuple(BYTES.encode(lead + "no")))


def test_ignore_eos_means_no_stop_ids() -> None:
    for ignore, stop_ids in ((True, frozenset()), (False, frozenset({2}))):
        prompt = text_task(sampling=SamplingParams(ignore_eos=ignore)).prepare(request("x"))
        assert isinstance(prompt, Prompt)
        assert prompt.stop_ids == stop_ids


def test_a_control_token_in_data_is_data_and_in_the_template_is_one() -> None:
    task = text_task(tokenizer=ControlTokenizer(), prompt="{text}<END>", system="<END>")
    prompt = task.prepare(request("a<END>b"))
    assert isinstance(prompt, Prompt)
    assert prompt.ids.count(2) == 2
    assert shown(prompt) == "system: \nuser: a<END>b\nassistant:"


def test_a_control_token_in_messages_is_data() -> None:
    task = text_task(tokenizer=ControlTokenizer(), prompt=None)
    prompt = task.prepare(request('[{"role":"user<END>","content":"a<END>b"}]', tags="m"))
    assert isinstance(prompt, Prompt)
    assert prompt.ids.count(2) == 0
    assert shown(prompt) == "user<END>: a<END>b\nassistant:"


def test_a_lone_surrogate_from_a_json_escape_is_replaced_and_flagged() -> None:
    task = text_task(prompt=None)
    prompt = task.prepare(request('[{"role":"user","content":"a\\ud83db\\u0000"}]', tags="m"))
    assert isinstance(prompt, Prompt)
    assert shown(prompt) == "user: a\ufffdb\x00\nassistant:"
    assert prompt.warnings == ("INVALID_UTF8",)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"prompt": "{a}"}, InvalidTemplate),
        ({"prompt": None, "names": ("a", "b")}, InvalidTemplate),
        ({"prompt": "{text"}, InvalidTemplate),
        ({"choices": ()}, InvalidConfig),
        ({"choices": ("a", "")}, InvalidConfig),
        ({"choices": ("a", "b", "a")}, InvalidConfig),
        ({"on_overflow": "cut"}, InvalidConfig),
        ({"clock": "now"}, InvalidConfig),
    ],
)
def test_a_task_that_cannot_work_is_refused_when_it_is_made(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        text_task(**fields)


def test_a_task_survives_the_way_to_the_engine_process() -> None:
    spec = TaskSpec(
        prompt="{a}", names=("a",), choices=("x", "y"), sampling=SamplingParams(stop=("e",), temperature=0.5)
    )
    assert TaskSpec.from_json(spec.to_json()) == spec
    assert dataclasses.replace(spec, clock="2020-02-02") != spec


def test_a_null_beside_other_values_is_an_empty_text_with_a_warning() -> None:
    task = text_task(prompt="{a}/{b}", names=("a", "b"))
    prompt = task.prepare(request("x", None))
    assert isinstance(prompt, Prompt)
    assert "x/" in shown(prompt)
    assert prompt.warnings == ("NULL_ARGUMENT",)
    whole = task.prepare(request("x", ""))
    assert isinstance(whole, Prompt)
    assert whole.warnings == ()


def test_a_prompt_without_a_token_fails_its_row() -> None:
    class Bare(PlainTokenizer):
        """It begins no text with a token of its own."""

        def encode(self, text: str, *, bos: bool = False, control: bool = True) -> list[int]:
            return super().encode(text)

    empty = {"prompt": "{text}", "names": ("text",)}
    completion = failed(text_task(tokenizer=Bare(), **empty).prepare(request("")))
    assert completion.error_code == "EMPTY_PROMPT"
    assert completion.error_message is not None
    assert "skip_blank" in completion.error_message
    assert isinstance(text_task(tokenizer=Bare(), **empty).prepare(request("a")), Prompt)
    assert isinstance(text_task(tokenizer=PlainTokenizer(), **empty).prepare(request("")), Prompt), "it begins with bos"


def test_a_token_that_the_model_does_not_know_fails_its_row() -> None:
    spec = TaskSpec(prompt="{text}", names=("text",))
    task = TextTask(spec, PlainTokenizer(), 500, vocab_size=ord("z") + 3)
    completion = failed(task.prepare(request("jazz")))
    assert completion.error_code == "UNKNOWN_TOKEN"
    assert completion.error_message is not None
    assert f"the id {ord('z') + 3}, and the model knows {ord('z') + 3};" in completion.error_message
    assert isinstance(task.prepare(request("blues")), Prompt)
    closed = TextTask(
        TaskSpec(prompt="{text}", names=("text",), choices=("jazz", "blues")), BYTES, 500, vocab_size=ord("z") + 3
    )
    assert failed(closed.prepare(request("a"))).error_code == "UNKNOWN_TOKEN"


def test_a_stop_id_that_the_model_does_not_know_is_none() -> None:
    fields = {"prompt": "{text}", "names": ("text",), "choices": ("no", "no way")}
    prompts = [TextTask(TaskSpec(**fields), BYTES, 500, vocab_size=size).prepare(request("a")) for size in (None, 300)]
    assert [prompt.stop_ids for prompt in prompts if isinstance(prompt, Prompt)] == [BYTES.stop_ids] * 2

    class Far(ByteTokenizer):
        stop_ids = frozenset({2, 900})

    (far,) = [TextTask(TaskSpec(**fields), Far(), 500, vocab_size=300).prepare(request("a"))]
    assert isinstance(far, Prompt)
    assert far.stop_ids == {2}
