"""Prompts that are too long: what is cut, and that it is never the instruction."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sparkinfer.errors import InvalidConfig, PromptTooLong
from sparkinfer.text.overflow import Fitted, check_policy, fit
from sparkinfer.text.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()


class CountingTokenizer(ByteTokenizer):
    """Counts the characters that are tokenised."""

    def __init__(self) -> None:
        self.characters = 0

    def encode(self, text: str, *, bos: bool = False, control: bool = True) -> list[int]:
        self.characters += len(text)
        return super().encode(text, bos=bos, control=control)

    def token_starts(self, text: str) -> list[int]:
        self.characters += len(text)
        return super().token_starts(text)


def cut(*texts: str, room: int, policy: str, tokenizer: ByteTokenizer = TOKENIZER) -> tuple[str, str | None]:
    """The prompt ``<text,text>`` cut to room bytes, and the warning."""

    def encode(kept: Sequence[str]) -> list[int]:
        return tokenizer.encode("<" + ",".join(kept) + ">")

    fitted: Fitted = fit(texts, encode=encode, tokenizer=tokenizer, room=room, policy=policy)
    return tokenizer.decode(fitted.ids), fitted.warning


@pytest.mark.parametrize("policy", ["error", "truncate_left", "truncate_right", "truncate_middle", "skip"])
def test_what_fits_is_left_alone(policy: str) -> None:
    assert cut("abcdef", room=8, policy=policy) == ("<abcdef>", None)


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_without_cutting_it_is_too_long_and_says_by_how_much(policy: str) -> None:
    with pytest.raises(PromptTooLong) as caught:
        cut("abcdefg", room=8, policy=policy)
    assert "has 9 tokens and the context leaves it 8" in caught.value.message
    assert "on_overflow" in caught.value.message


def test_the_named_side_is_cut_and_the_markup_stays() -> None:
    warning = "TRUNCATED_INPUT: kept 6 of 10 characters"
    assert cut("0123456789", room=8, policy="truncate_left") == ("<456789>", warning)
    assert cut("0123456789", room=8, policy="truncate_right") == ("<012345>", warning)


def test_the_middle_is_replaced_by_an_ellipsis() -> None:
    prompt, warning = cut("0123456789", room=9, policy="truncate_middle")
    assert prompt == "<01…89>"
    assert warning == "TRUNCATED_INPUT: kept 5 of 10 characters"


def test_no_character_is_cut_in_two() -> None:
    assert cut("éééé", room=7, policy="truncate_right")[0] == "<éé>"
    assert cut("éééé", room=7, policy="truncate_left")[0] == "<éé>"


def test_of_several_texts_the_longest_give_way_first() -> None:
    assert cut("aa", "b" * 50, room=13, policy="truncate_right")[0] == "<aa,bbbbbbbb>"
    assert cut("a" * 50, "b" * 60, room=13, policy="truncate_right")[0] == "<aaaaa,bbbbb>"


def test_an_instruction_that_alone_is_too_long_is_an_error_whatever_the_policy() -> None:
    with pytest.raises(PromptTooLong, match="instruction alone takes 2 tokens"):
        cut("abc", room=1, policy="truncate_left")


def test_a_text_can_be_cut_to_nothing() -> None:
    assert cut("abc", room=2, policy="truncate_left")[0] == "<>"


@pytest.mark.parametrize("policy", ["truncate_left", "truncate_right", "truncate_middle", "error"])
def test_of_a_megabyte_only_what_could_be_kept_is_tokenised(policy: str) -> None:
    tokenizer = CountingTokenizer()
    try:
        prompt, _ = cut("x" * 1_000_000, room=100, policy=policy, tokenizer=tokenizer)
        assert 98 <= len(prompt) <= 100
    except PromptTooLong as error:
        assert "more than 800" in error.message
    assert tokenizer.characters < 3_000


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="truncate_middle"):
        check_policy("truncate")
