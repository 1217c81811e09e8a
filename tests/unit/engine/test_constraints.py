"""Closed choices: what may come next, and when a choice is whole."""

from __future__ import annotations

import pytest

from sparkinfer.engine.constraints import longest, trie_of

CHOICES = ((5, 6), (5, 6, 7), (5, 8), (9,))
TRIE = trie_of(CHOICES)


@pytest.mark.parametrize(
    ("generated", "expected"),
    [([], [5, 9]), ([5], [6, 8]), ([5, 6], [2, 7]), ([5, 6, 7], []), ([9], []), ([4], []), ([5, 6, 2], [])],
)
def test_only_a_continuation_of_a_choice_is_allowed(generated: list[int], expected: list[int]) -> None:
    assert TRIE.allowed(generated, frozenset([2])) == expected


def test_a_choice_that_another_continues_is_not_complete_until_a_stop_id() -> None:
    assert not TRIE.is_complete([5, 6])
    assert TRIE.is_complete([5, 6, 7])
    assert TRIE.is_complete([9])
    assert not TRIE.is_complete([])
    assert not TRIE.is_complete([9, 9])


def test_stop_ids_are_not_allowed_where_no_choice_ends() -> None:
    assert TRIE.allowed([], frozenset([2])) == [5, 9]


def test_the_longest_choice_is_counted_in_tokens() -> None:
    assert longest(CHOICES) == 3


def test_equal_choices_count_once() -> None:
    assert trie_of(((3,), (3,))).allowed([]) == [3]


@pytest.mark.parametrize(
    ("choices", "generated", "ids"),
    [
        (((5, 6, 7), (5, 6, 8)), [], [5, 6]),
        (((5, 6, 7), (5, 6, 8)), [5], [6]),
        (((5, 6, 7), (5, 6, 8)), [5, 6], []),
        (((5, 6), (5, 6, 7)), [], [5, 6]),  # whether it goes on after 6 is the model's to say
        (((5, 6), (5, 6, 7)), [5, 6], []),
        (((5, 6, 7), (8,)), [5], [6, 7]),
        (((5,), (8,)), [], []),
    ],
)
def test_what_leaves_nothing_to_decide_is_forced(
    choices: tuple[tuple[int, ...], ...], generated: list[int], ids: list[int]
) -> None:
    assert trie_of(choices).forced(generated) == ids


@pytest.mark.parametrize(
    ("choices", "generated", "rest"),
    [
        (((5, 6, 7), (8, 9)), [5], [6, 7]),
        (((5, 6, 7), (8, 9)), [8], [9]),
        (((5, 6, 7), (8, 9)), [], []),
        (((5, 6, 7), (8, 9)), [8, 9], []),
        (((5, 6, 7), (8, 9)), [4], []),
        (((5, 6, 7), (5, 6, 8)), [5], []),  # decided only after 6
        (((5, 6), (5, 6, 7)), [5], []),  # whether it goes on after 6 is the model's to say
        (((5, 6), (5, 6, 7, 8)), [5, 6, 7], [8]),
        (((5, 6, 7),), [], [5, 6, 7]),
    ],
)
def test_what_is_left_of_the_only_possible_choice_is_forced(
    choices: tuple[tuple[int, ...], ...], generated: list[int], rest: list[int]
) -> None:
    assert trie_of(choices).forced_end(generated) == rest
