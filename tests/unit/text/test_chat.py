"""Chat templates: the clock stands still, the sandbox holds, refusals are row errors."""

from __future__ import annotations

import pytest

from sparkinfer.errors import InvalidConfig, InvalidMessages, UnsupportedModel
from sparkinfer.text.chat import ChatTemplate

CHATML = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[dict[str, object]] = USER, clock: str = "2026-01-01", **names: object) -> str:
    template = ChatTemplate(source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(messages, clock=clock, template_kwargs=names)


def test_a_template_gets_messages_special_tokens_and_the_generation_prompt() -> None:
    assert render(CHATML) == "<|user|>hi</s><|assistant|>"


def test_today_is_the_date_of_the_configuration() -> None:
    assert render("{{ strftime_now('%d %B %Y') }}", clock="2025-12-24") == "24 December 2025"
    assert render("{{ strftime_now('%Y-%m-%d %H:%M') }}", clock="2025-12-24T08:30") == "2025-12-24 08:30"


def test_template_kwargs_reach_the_template() -> None:
    source = "{% if enable_thinking is defined and not enable_thinking %}off{% else %}on{% endif %}"
    assert render(source) == "on"
    assert render(source, enable_thinking=False) == "off"


def test_a_clock_that_is_no_date_is_a_configuration_error() -> None:
    with pytest.raises(InvalidConfig, match="ISO date"):
        render(CHATML, clock="tomorrow")


def test_a_template_that_refuses_messages_fails_the_row() -> None:
    source = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}"
    with pytest.raises(InvalidMessages, match="roles must alternate"):
        render(source, [{"role": "assistant", "content": "x"}])


def test_a_template_that_fails_on_its_own_fails_the_row() -> None:
    with pytest.raises(InvalidMessages):
        render("{{ messages[0]['content'] + 1 }}")


def test_a_template_that_does_not_compile_is_an_unsupported_model() -> None:
    with pytest.raises(UnsupportedModel, match="does not compile"):
        ChatTemplate("{% for %}", special_tokens={})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.x }}",
        "{{ strftime_now.__globals__ }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    # Jinja answers some of these with an undefined (empty) value and some with an error; none may show Python's insides.
    try:
        shown = render(source)
    except InvalidMessages:
        return
    assert shown == ""


def test_json_in_a_template_is_plain_json() -> None:
    assert (
        render("{{ messages | tojson }}", [{"role": "user", "content": "<é>"}])
        == '[{"role": "user", "content": "<é>"}]'
    )


def test_generation_marks_and_loop_controls_are_understood() -> None:
    source = "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% break %}{% endfor %}"
    assert render(source, [*USER, *USER]) == "hi"


def test_a_system_message_that_is_refused_or_dropped_has_no_place() -> None:
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    dropping = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"
    assert ChatTemplate(CHATML, special_tokens={}).takes_system()
    assert not ChatTemplate(refusing, special_tokens={}).takes_system()
    assert not ChatTemplate(dropping, special_tokens={}).takes_system()
