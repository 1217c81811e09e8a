"""Prompts that do not fit the context: refuse, skip, or cut the row's own text.

Only the row's text is cut, never the instruction or the chat markup, so the cut has to be found through the whole rendering:
take as many tokens from the longest texts as are over, render again, look again. Of a long text only as much is tokenised as
could be kept, so that a megabyte costs no more than a full context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sparkinfer.errors import InvalidConfig, PromptTooLong
from sparkinfer.text.tokenizer import Tokenizer

POLICIES: Final = ("error", "truncate_left", "truncate_right", "truncate_middle", "skip")

#: Stands where the middle of a text was cut out.
ELLIPSIS: Final = "…"

#: Characters that a token holds in most languages and code, with room to spare; a first guess that is checked.
_CHARS_PER_TOKEN: Final = 8
#: Tokens that the place of a cut can add, at most.
_BORDER_TOKENS: Final = 16

Encode = Callable[[Sequence[str]], list[int]]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt that fits, and the warning that says what was cut."""

    ids: list[int]
    warning: str | None = None


def check_policy(policy: str) -> None:
    """Refuse an overflow policy that does not exist.

    Raises:
        InvalidConfig: with the ones that do.
    """
    if policy not in POLICIES:
        raise InvalidConfig(f"on_overflow must be one of {', '.join(POLICIES)}, not {policy!r}.")


def fit(texts: Sequence[str], *, encode: Encode, tokenizer: Tokenizer, room: int, policy: str) -> Fitted:
    """The ids of a prompt of at most ``room`` tokens, its texts cut where the policy says so.

    Args:
        texts: the row's texts that may be cut.
        encode: renders the prompt with these texts and gives its ids.
        tokenizer: says where a text's tokens begin.
        room: tokens that the prompt may have.
        policy: one of :data:`POLICIES`; ``skip`` raises like ``error``, the caller makes a skipped row of it.

    Raises:
        PromptTooLong: it does not fit, and the policy does not cut or all of the row's text is not enough.
    """
    if not policy.startswith("truncate"):
        return Fitted(_encode_whole(texts, encode=encode, tokenizer=tokenizer, room=room))
    cuts = [_Cut(text, tokenizer=tokenizer, room=room, policy=policy) for text in texts]
    keep = [min(cut.count, room) for cut in cuts]
    while True:
        kept = [cut.keep(tokens) for cut, tokens in zip(cuts, keep, strict=True)]
        ids = encode(kept)
        over = len(ids) - room
        if over <= 0:
            return Fitted(ids, _warning(texts, kept))
        if not any(keep):
            raise PromptTooLong(
                f"The instruction alone takes {len(ids)} tokens and the context leaves the prompt {room}; "
                "shorten it, lower max_tokens or use a model with a longer context."
            )
        keep = _lowered(keep, over)


class _Cut:
    """One text and where it can be cut. ``count`` is the number of its tokens, or just more than can be kept."""

    def __init__(self, text: str, *, tokenizer: Tokenizer, room: int, policy: str) -> None:
        self._text = text
        self._policy = policy
        self._head, head_whole = _starts(text, tokenizer=tokenizer, tokens=room, from_end=False)
        self._tail = self._head
        if not head_whole and policy != "truncate_right":
            self._tail, _ = _starts(text, tokenizer=tokenizer, tokens=room, from_end=True)
        self.count = len(self._head) if head_whole else max(room + 1, len(self._head))

    def keep(self, tokens: int) -> str:
        """The text with about ``tokens`` of its tokens; whole characters only."""
        if tokens >= self.count:
            return self._text
        if tokens == 0:
            return ""
        if self._policy == "truncate_right":
            return self._text[: self._head[tokens]]
        if self._policy == "truncate_left":
            return self._text[self._tail[-tokens] :]
        head, tail = (tokens + 1) // 2, tokens // 2
        end = self._text[self._tail[-tail] :] if tail else ""
        return self._text[: self._head[head]] + ELLIPSIS + end


def _starts(text: str, *, tokenizer: Tokenizer, tokens: int, from_end: bool) -> tuple[list[int], bool]:
    """Starts (character indexes in the text) of more than ``tokens`` of its first or last tokens, and whether they are all."""
    size = tokens * _CHARS_PER_TOKEN + 1
    while size < len(text):
        offset = len(text) - size if from_end else 0
        starts = tokenizer.token_starts(text[offset : offset + size])
        if len(starts) > tokens + _BORDER_TOKENS:
            # The token at the border of the window is one only because the window ends there.
            return ([offset + start for start in starts[1:]] if from_end else starts[:-1]), False
        size *= 4
    return tokenizer.token_starts(text), True


def _lowered(keep: Sequence[int], over: int) -> list[int]:
    """At least ``over`` tokens less (as far as there are), taken from the longest so that they end equally long."""
    target = max(0, sum(keep) - over)
    low, high = 0, max(keep)
    while low < high:
        level = (low + high + 1) // 2
        if sum(min(tokens, level) for tokens in keep) <= target:
            low = level
        else:
            high = level - 1
    return [min(tokens, low) for tokens in keep]


def _encode_whole(texts: Sequence[str], *, encode: Encode, tokenizer: Tokenizer, room: int) -> list[int]:
    for text in texts:
        if len(text) > room * _CHARS_PER_TOKEN:
            sample = len(tokenizer.token_starts(text[: room * _CHARS_PER_TOKEN]))
            if sample > room + _BORDER_TOKENS:  # so the rest need not be tokenised
                raise PromptTooLong(_too_long(f"more than {sample}", room))
    ids = encode(texts)
    if len(ids) > room:
        raise PromptTooLong(_too_long(str(len(ids)), room))
    return ids


def _too_long(count: str, room: int) -> str:
    return (
        f"The prompt has {count} tokens and the context leaves it {room}; shorten the text, lower max_tokens or set "
        "on_overflow to truncate_left, truncate_right, truncate_middle or skip."
    )


def _warning(texts: Sequence[str], kept: Sequence[str]) -> str | None:
    before, after = sum(map(len, texts)), sum(map(len, kept))
    return f"TRUNCATED_INPUT: kept {after} of {before} characters" if list(texts) != list(kept) else None
