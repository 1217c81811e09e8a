"""Choices as the model itself would go on writing them."""

from __future__ import annotations

import pytest

from sparkinfer.errors import InvalidConfig
from sparkinfer.text.choices import check_choices, choice_ids
from sparkinfer.text.tokenizer import ByteTokenizer


class MergingTokenizer(ByteTokenizer):
    """Knows ``\\ng`` (500) and a whole ``good`` (501), and at the begin of a text ``good`` is 502; nothing of Z."""

    def encode(self, text: str, *, bos: bool = False, control: bool = True) -> list[int]:
        ids: list[int] = []
        position = 0
        while position < len(text):
            for piece, token_id in (("\ng", 500), ("good", 501)):
                if text.startswith(piece, position):
                    ids.append(502 if piece == "good" and position == 0 else token_id)
                    position += len(piece)
                    break
            else:
                ids += super().encode(text[position]) if text[position] != "Z" else []
                position += 1
        return ids


def test_a_choice_is_tokenised_behind_the_prompts_end() -> None:
    assert choice_ids(["good"], tokenizer=MergingTokenizer(), prompt_end="x:") == ((501,),)


def test_a_choice_that_would_melt_with_the_prompts_end_is_tokenised_alone() -> None:
    assert choice_ids(["good"], tokenizer=MergingTokenizer(), prompt_end="x\n") == ((502,),)


def test_a_choice_without_tokens_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="no tokens of its own"):
        choice_ids(["good", "Z"], tokenizer=MergingTokenizer(), prompt_end="x:")


def test_two_choices_with_the_same_tokens_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="'aZ' has no tokens of its own"):
        choice_ids(["a", "aZ"], tokenizer=MergingTokenizer(), prompt_end="x:")


@pytest.mark.parametrize("choices", [[], [""], ["a", "a"], ["a", 3], ["a", None]])
def test_choices_that_cannot_be_told_apart_are_refused(choices: list[str]) -> None:
    with pytest.raises(InvalidConfig, match="choices"):
        check_choices(choices)


def test_a_choice_that_begins_another_needs_a_token_that_ends_it() -> None:
    class Endless(ByteTokenizer):
        stop_ids = frozenset()

    with pytest.raises(InvalidConfig, match="'no' begins another one"):
        choice_ids(["no way", "no"], tokenizer=Endless(), prompt_end="x:")
    assert len(choice_ids(["no way", "no"], tokenizer=ByteTokenizer(), prompt_end="x:")) == 2
    assert len(choice_ids(["no", "yes"], tokenizer=Endless(), prompt_end="x:")) == 2
