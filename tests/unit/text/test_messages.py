"""Chat messages from canonical JSON."""

from __future__ import annotations

import json

import pytest

from sparkinfer.errors import InvalidMessages
from sparkinfer.text.messages import parse_messages, plain_chat


def test_messages_are_plain_lists_and_survive_json() -> None:
    messages = parse_messages('[{"content":"hi","role":"user"},{"content":"yes?","role":"assistant"}]')
    assert messages == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]
    assert json.loads(json.dumps(messages)) == messages


def test_a_null_content_is_left_out_as_transformers_leaves_it_out() -> None:
    assert parse_messages('[{"content":null,"role":"assistant"}]') == [{"role": "assistant"}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "at least one"),
        ("", "not JSON"),
        ("hello", "not JSON"),
        ('{"role":"user","content":"x"}', "must be a list"),
        ('["x"]', "Message 1 is not an object"),
        ('[{"role":"user","content":"x"},{"content":"y"}]', "Message 2 has no role"),
        ('[{"role":"","content":"y"}]', "Message 1 has no role"),
        ('[{"role":"user","content":[{"type":"image"}]}]', "not text"),
        ('[{"role":"user","content":3}]', "not text"),
    ],
)
def test_messages_that_are_none_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidMessages, match="INVALID_MESSAGES") as caught:
        parse_messages(text)
    assert why in caught.value.message


def test_a_system_text_and_a_question_are_joined_by_an_empty_line() -> None:
    assert plain_chat([{"role": "user", "content": "Q"}]) == "Q"
    assert plain_chat([{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]) == "S\n\nQ"


def test_a_conversation_without_a_chat_template_is_lines_of_roles() -> None:
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}, {"role": "user"}]
    assert plain_chat(messages) == "user: Q\nassistant: A\nuser: \nassistant:"
