"""Closed choices as a trie over token ids: only a choice can come out. State is the generated ids themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

Choices = tuple[tuple[int, ...], ...]


class _Node:
    """One state of the trie: where each next id leads, and whether a choice ends here."""

    __slots__ = ("children", "ends")

    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}
        self.ends = False


@lru_cache(maxsize=256)
def _trie(choices: Choices) -> _Node:
    root = _Node()
    for choice in choices:
        node = root
        for token_id in choice:
            node = node.children.setdefault(token_id, _Node())
        node.ends = True
    return root


def _state(choices: Choices, generated: Sequence[int]) -> _Node | None:
    node: _Node | None = _trie(choices)
    for token_id in generated:
        node = None if node is None else node.children.get(token_id)
    return node


def allowed(choices: Choices, generated: Sequence[int], stop_ids: Collection[int] = ()) -> list[int]:
    """The ids that may come next, in ascending order.

    Args:
        choices: token ids of each choice.
        generated: what has come out so far.
        stop_ids: ids that end the completion; allowed where a choice ends that another one continues.

    Returns:
        Ids; empty where the choice is complete (or ``generated`` is no beginning of a choice).
    """
    node = _state(choices, generated)
    if node is None:
        return []
    ends_early = node.ends and node.children
    return sorted({*node.children, *(stop_ids if ends_early else ())})


def is_complete(choices: Choices, generated: Sequence[int]) -> bool:
    """Whether a choice is whole and none goes on from it."""
    node = _state(choices, generated)
    return node is not None and node.ends and not node.children


def forced_end(choices: Choices, generated: Sequence[int]) -> list[int]:
    """The ids that are left of the only choice still possible; empty where something is left to decide.

    A choice that another one continues is not at its end: whether it stops there is the model's to say.
    """
    node = _state(choices, generated)
    rest: list[int] = []
    while node is not None and not node.ends and len(node.children) == 1:
        ((token_id, node),) = node.children.items()
        rest.append(token_id)
    return rest if node is not None and node.ends and not node.children else []


def longest(choices: Choices) -> int:
    """Tokens of the longest choice."""
    return max(len(choice) for choice in choices)
