"""Whether a peer's answers are the oracle's: tokens that agree up to where a row parts, and rows that never part."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from benchmarks.workloads import Row


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of the rows whose answer the oracle has given: how many, how many are the same, and the share of agreeing tokens."""

    rows: int
    same_rows: int
    tokens: float

    def __str__(self) -> str:
        return f"{self.same_rows} of {self.rows} rows, {100 * self.tokens:.1f} % of tokens" if self.rows else "–"


def compare(answers: list[Any], rows: list[Row], tokenizer: Any, *, ends_at_eos: bool) -> Agreement:
    """Compare token ids or texts with the oracle's tokens.

    A text has lost what special tokens said and may be cut in tokens another way than it was made, so both sides are
    brought to text and back.
    """
    known = same = agreeing = total = 0
    for answer, row in zip(answers, rows, strict=True):
        if row.answer is None:
            continue
        expected = canonical(cut(row.answer, tokenizer.eos_token_id) if ends_at_eos else row.answer, tokenizer)
        given = canonical(answer, tokenizer)
        prefix = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(given, expected, strict=False)))
        known, same = known + 1, same + (given == expected)
        agreeing, total = agreeing + prefix, total + max(len(expected), len(given))
    return Agreement(known, same, agreeing / total if total else 1.0)


def canonical(answer: list[int] | str, tokenizer: Any) -> list[int]:
    """Tokens of the answer's text."""
    text = answer if isinstance(answer, str) else tokenizer.decode(answer, skip_special_tokens=True)
    ids: list[int] = tokenizer(text.strip(), add_special_tokens=False).input_ids
    return ids


def cut(ids: list[int], eos: int) -> list[int]:
    """Tokens before the first end token."""
    return ids[: ids.index(eos)] if eos in ids else ids
