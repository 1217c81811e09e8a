"""Closed choices as a trie over token ids: only a choice can come out. State is the generated ids themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

Choices = tuple[tuple[int, ...], ...]


class Trie:
    """One state of the choices: where each next id leads, and whether a choice ends here.

    What is asked of it takes the ids generated from here on.
    """

    __slots__ = ("children", "ends")

    def __init__(self) -> None:
        self.children: dict[int, Trie] = {}
        self.ends = False

    def allowed(self, generated: Sequence[int], stop_ids: Collection[int] = ()) -> list[int]:
        """The ids that may come next, in ascending order.

        Args:
            generated: what has come out so far.
            stop_ids: ids that end the completion; allowed where a choice ends that another one continues.

        Returns:
            Ids; empty where the choice is complete (or ``generated`` is no beginning of a choice).
        """
        node = self._after(generated)
        if node is None:
            return []
        ends_early = node.ends and node.children
        return sorted({*node.children, *(stop_ids if ends_early else ())})

    def is_complete(self, generated: Sequence[int]) -> bool:
        """Whether a choice is whole and none goes on from it."""
        node = self._after(generated)
        return node is not None and node.ends and not node.children

    def forced(self, generated: Sequence[int]) -> list[int]:
        """The ids that must come next, up to where something is left to decide or a choice is whole.

        A choice that another one continues is such a place: whether it stops there is the model's to say.
        """
        node = self._after(generated)
        ids: list[int] = []
        while node is not None and not node.ends and len(node.children) == 1:
            ((token_id, node),) = node.children.items()
            ids.append(token_id)
        return ids

    def forced_end(self, generated: Sequence[int]) -> list[int]:
        """The rest of the only choice still possible; empty where something is left to decide."""
        rest = self.forced(generated)
        return rest if self.is_complete([*generated, *rest]) else []

    def _after(self, generated: Sequence[int]) -> Trie | None:
        node: Trie | None = self
        for token_id in generated:
            node = None if node is None else node.children.get(token_id)
        return node


@lru_cache(maxsize=256)
def trie_of(choices: Choices) -> Trie:
    """The trie of these choices, shared by all who ask for it. To find it costs a hash of every id: ask once a sequence."""
    root = Trie()
    for choice in choices:
        node = root
        for token_id in choice:
            node = node.children.setdefault(token_id, Trie())
        node.ends = True
    return root


def longest(choices: Choices) -> int:
    """Tokens of the longest choice."""
    return max(len(choice) for choice in choices)
