"""Control tokens written out in data stay data.

A review that says ``<|im_end|>`` must not end the user's turn. Such texts in a row's values are masked before the prompt is
rendered and, where a mask stands in the rendered prompt, encoded as plain text. The system prompt and the template are the
author's own: control tokens there mean what they say.
"""

from __future__ import annotations

import re
from typing import Final

from sparkinfer.text.tokenizer import Tokenizer

# Unicode noncharacters, kept free for a program's own use. Faking them gains nothing: a mask stands for plain text.
_OPEN: Final = "\ufdd0"
_CLOSE: Final = "\ufdd1"
_MASK: Final = re.compile(_OPEN + "([0-9]+)" + _CLOSE)


class ControlTokens:
    """Masks the control tokens of one tokenizer in data, and encodes rendered prompts that hold masks."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens = sorted(tokenizer.control_tokens, key=len, reverse=True)  # the longest match first
        self._numbers = {token: number for number, token in enumerate(self._tokens)}
        self._pattern = re.compile("|".join(map(re.escape, self._tokens))) if self._tokens else None

    def mask(self, text: str) -> str:
        """The text with a mask in the place of each control token."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: f"{_OPEN}{self._numbers[match[0]]}{_CLOSE}", text)

    def unmask(self, text: str) -> str:
        """The inverse of :meth:`mask`."""
        return _MASK.sub(lambda match: self._token(match[1]) or match[0], text)

    def encode(self, rendered: str, *, bos: bool) -> list[int]:
        """Ids of a rendered prompt: control tokens outside masks as control ids, masked ones as plain text."""
        if _OPEN not in rendered:
            return self._tokenizer.encode(rendered, bos=bos)
        ids: list[int] = []
        for index, part in enumerate(_MASK.split(rendered)):
            if index % 2 == 0:
                ids += self._tokenizer.encode(part, bos=bos and index == 0) if part or index == 0 else []
            else:
                ids += self._tokenizer.encode(self._token(part) or f"{_OPEN}{part}{_CLOSE}", control=False)
        return ids

    def _token(self, number: str) -> str | None:
        return self._tokens[int(number)] if int(number) < len(self._tokens) else None
