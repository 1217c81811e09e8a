"""Rows that need no engine: all their prompt columns are null, or blank where those are skipped too."""

from __future__ import annotations

from sparkinfer.types import Completion, FinishReason, Request


def is_skipped(request: Request, *, skip_blank: bool) -> bool:
    """Whether the row is answered with null without a request."""
    return all(value is None or (skip_blank and not value.strip()) for value in request.values)


def skipped(request: Request) -> Completion:
    """The answer of such a row: null, no tokens, no attempt, and no time, so that two evaluations are equal."""
    return Completion(
        row=request.row,
        input_hash=request.input_hash,
        finish_reason=FinishReason.SKIPPED,
        warnings=request.warnings,
        attempts=0,
    )
