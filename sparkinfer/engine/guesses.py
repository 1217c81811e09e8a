"""What may come next, guessed from what came before: the tokens that followed the same few tokens last time.

An extract or a summary repeats its source. A guess costs one place in a batch that is not full (reading the weights once
serves it), and the model's own best token decides, so greedy answers stay what they are. After "prompt lookup decoding"
(A. Saxena, 2023) and the n-gram proposer of vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

NGRAMS = (4, 3, 2)
"""Tokens that have to be equal, the longest tried first."""
MOST = 16
"""Ids guessed at once at most."""
_FIRST = 4


class Guesses:
    """Remembers where each n-gram of one sequence was seen last, and how well its guesses went.

    Args:
        token_ids: the sequence's ids; the list that grows with it.
    """

    __slots__ = ("_indexed", "_places", "_token_ids", "_width")

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = token_ids
        self._places: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after it
        self._indexed = 0
        self._width = _FIRST

    def next(self, most: int) -> tuple[int, ...]:
        """At most ``most`` ids that may follow; empty where nothing like the last tokens came before."""
        self._index()
        most = min(most, self._width)
        for size in NGRAMS:
            place = self._places.get(tuple(self._token_ids[-size:])) if len(self._token_ids) > size else None
            if place is not None and most > 0:
                return tuple(self._token_ids[place : place + most])
        return ()

    def learn(self, guessed: int, accepted: int) -> None:
        """How many of the guessed ids were right: all, and more are guessed the next time; none, and fewer."""
        if accepted == guessed:
            self._width = min(2 * self._width, MOST)
        elif accepted == 0:
            self._width = max(self._width // 2, 1)

    def _index(self) -> None:
        """Enter the n-grams that end before the last token; the one that ends with it is what is looked for."""
        end = len(self._token_ids)
        for place in range(max(self._indexed, min(NGRAMS)), end):
            for size in NGRAMS:
                if place >= size:
                    self._places[tuple(self._token_ids[place - size : place])] = place
        self._indexed = max(self._indexed, end)
