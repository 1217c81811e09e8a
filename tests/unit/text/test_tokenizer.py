"""The byte tokenizer: what the fake engine speaks."""

from __future__ import annotations

from sparkinfer.text.tokenizer import ByteTokenizer, load_tokenizer


def test_without_a_folder_it_is_the_byte_tokenizer() -> None:
    assert isinstance(load_tokenizer(None), ByteTokenizer)


def test_ids_are_bytes_plus_three() -> None:
    assert ByteTokenizer().encode("aé", bos=True) == [1, 100, 198, 172]


def test_control_ids_are_left_out_of_the_text() -> None:
    assert ByteTokenizer().decode([1, 100, 0, 101, 2]) == "ab"


def test_each_byte_of_a_character_begins_at_the_character() -> None:
    assert ByteTokenizer().token_starts("aéb") == [0, 1, 1, 2]


def test_a_chat_is_lines_of_roles() -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}, {"role": "user"}]
    assert ByteTokenizer().chat(messages, clock="", template_kwargs={}) == "system: S\nuser: Q\nuser: \nassistant:"
