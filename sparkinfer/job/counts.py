"""Counts of a bucket's rows, as they were staged, and their sums over a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Figures of some rows; they add up.

    Attributes:
        rows: all of them.
        failed: with an error.
        skipped: without a request, on purpose.
        reused: with an answer that the table, or the answers table, already had.
        requests: inputs asked for (the first row of each).
        replaces: rows that take the place of older ones.
        old_buckets: buckets of these older ones; None among them: of one it is not known.
        failures: failed rows by code.
        example: ``(code, key, input_hash)`` of one failed row.
    """

    rows: int = 0
    failed: int = 0
    skipped: int = 0
    reused: int = 0
    requests: int = 0
    replaces: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    paid_prompt_tokens: int = 0
    paid_completion_tokens: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    old_buckets: frozenset[int | None] = frozenset()
    example: tuple[str, str, str] | None = None

    def __add__(self, other: Counts) -> Counts:
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in _NUMBERS}
        codes = {**self.failures}
        for code, count in other.failures.items():
            codes[code] = codes.get(code, 0) + count
        old_buckets = self.old_buckets | other.old_buckets
        return Counts(**sums, failures=codes, old_buckets=old_buckets, example=self.example or other.example)

    def numbers(self) -> dict[str, int]:
        """The plain figures by name."""
        return {name: getattr(self, name) for name in _NUMBERS}


_NUMBERS = (
    "rows",
    "failed",
    "skipped",
    "reused",
    "requests",
    "replaces",
    "prompt_tokens",
    "completion_tokens",
    "paid_prompt_tokens",
    "paid_completion_tokens",
)
