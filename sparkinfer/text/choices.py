"""Closed choices as token ids: how the model itself would go on writing each of them after the prompt.

A tokenizer cuts a word differently at the begin of a text and in its middle, so each choice is tokenised behind a prompt's end
and the prompt's ids taken away. Behind a chat template's markup a choice stands as it is. Behind a plain prompt that does not
end in white space it begins with a space, as a text would go on; the answer is the choice without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkinfer.errors import InvalidConfig
from sparkinfer.text.tokenizer import Tokenizer

ChoiceIds = tuple[tuple[int, ...], ...]


def check_choices(choices: Sequence[str]) -> None:
    """Refuse choices that cannot be told apart.

    Raises:
        InvalidConfig: none at all, an empty one, no text, or one that is there twice.
    """
    if not choices:
        raise InvalidConfig("choices is empty; name at least one answer, or leave it out for free text.")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise InvalidConfig(f"choices must be non-empty strings, not {choice!r}.")
    twice = sorted({choice for choice in choices if list(choices).count(choice) > 1})
    if twice:
        raise InvalidConfig(f"choices holds {twice} more than once.")


def choice_ids(choices: Sequence[str], *, tokenizer: Tokenizer, prompt_end: str) -> ChoiceIds:
    """Token ids of each choice, in their order.

    Args:
        choices: checked by :func:`check_choices`.
        tokenizer: the model's.
        prompt_end: a rendered prompt, or the end of one.

    Raises:
        InvalidConfig: two choices have the same ids in this model, one has none, or one begins another and nothing can end it.
    """
    prompt_ids = tokenizer.encode(prompt_end)
    found = tuple(
        _behind(choice, tokenizer=tokenizer, prompt_end=prompt_end, prompt_ids=prompt_ids) for choice in choices
    )
    if not tokenizer.stop_ids:
        for choice, ids in zip(choices, found, strict=True):
            if any(other[: len(ids)] == ids and other != ids for other in found):
                raise InvalidConfig(
                    f"choice {choice!r} begins another one, and this model has no token that could end it; choose another word."
                )
    for index, ids in enumerate(found):
        if not ids or ids in found[:index]:
            raise InvalidConfig(
                f"choice {choices[index]!r} has no tokens of its own in this model's vocabulary; choose another word."
            )
    return found


def _behind(choice: str, *, tokenizer: Tokenizer, prompt_end: str, prompt_ids: list[int]) -> tuple[int, ...]:
    together = tokenizer.encode(prompt_end + choice)
    if together[: len(prompt_ids)] == prompt_ids:
        return tuple(together[len(prompt_ids) :])
    # The border's characters melt into one token, which the model cannot write: the choice as a text of its own.
    return tuple(tokenizer.encode(choice))
