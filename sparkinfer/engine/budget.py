"""The token budget of a step, which shrinks when a step fails and grows back while steps succeed.

A step that raises (out of memory, most often) computed nothing, so it can run again with fewer tokens. Halving ends with the
one sequence that cannot even run alone: it fails, its neighbours do not.
"""

from __future__ import annotations

GROW_AFTER = 16


class TokenBudget:
    """How many tokens a step may run.

    Args:
        limit: the most it can be.

    Attributes:
        tokens: what it is now; at least 1.
    """

    def __init__(self, limit: int) -> None:
        self.tokens = limit
        self._limit = limit
        self._successes = 0

    def shrink(self, num_tokens: int) -> None:
        """A step of so many tokens failed: run at most half of them from now on."""
        self.tokens = max(1, num_tokens // 2)
        self._successes = 0

    def succeeded(self) -> None:
        """A step went well; after :data:`GROW_AFTER` of them in a row a shrunken budget doubles."""
        if self.tokens == self._limit:
            return
        self._successes += 1
        if self._successes == GROW_AFTER:
            self.tokens = min(self._limit, self.tokens * 2)
            self._successes = 0
