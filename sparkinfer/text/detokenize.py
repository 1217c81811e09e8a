"""Ids to text while they come: never half a character, and stop strings wherever they fall.

A character can be spread over several tokens, and what a token adds to a text can depend on the one before (spaces), so a
piece is the difference of two decodings of a short window, and is held back while the window ends in a broken character.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sparkinfer.text.tokenizer import Tokenizer

REPLACEMENT: Final = "\ufffd"


class Detokenizer:
    """Pieces of text from ids; joined they are the decoding of all ids."""

    __slots__ = ("_ids", "_read", "_start", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # the window begins here: the tokens that gave the last piece, for context
        self._read = 0  # ids before this one have been given out as text

    def push(self, ids: Sequence[int]) -> str:
        """Take new ids and give the text that they complete, perhaps none."""
        pieces = []
        for token_id in ids:
            self._ids.append(token_id)
            pieces.append(self._piece(final=False))
        return "".join(pieces)

    def flush(self) -> str:
        """The rest; characters that were never completed become U+FFFD."""
        return self._piece(final=True)

    def _piece(self, *, final: bool) -> str:
        if self._read == len(self._ids):
            return ""
        context = self._tokenizer.decode(self._ids[self._start : self._read])
        window = self._tokenizer.decode(self._ids[self._start :])
        if not final and (window.endswith(REPLACEMENT) or len(window) <= len(context)):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return window[len(context) :]


class StopStrings:
    """Looks for the first stop string in a text that grows.

    Args:
        stop: non-empty strings.
    """

    __slots__ = ("_longest", "_stop", "text")

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self.text = ""

    def push(self, piece: str) -> bool:
        """Add a piece; True when a stop string is complete, and then :attr:`text` ends before it."""
        begin = max(0, len(self.text) - self._longest + 1)
        self.text += piece
        found = [at for stop in self._stop if (at := self.text.find(stop, begin)) >= 0]
        if found:
            self.text = self.text[: min(found)]
        return bool(found)
