"""What ``run()`` gives back: every figure of the job, the same words as in ``--json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkinfer.errors import FailedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One finished job. ``rows + already_done + failed_before == source_rows``.

    Attributes:
        rows: rows that this run wrote, failed and skipped ones too.
        failed: of them, rows with an error.
        skipped: of them, rows that had nothing to ask.
        reused: of them, rows with an answer that the table, or the answers table of ``cache=``, had for the same text.
        already_done: source rows that were in the table before (or that another run wrote meanwhile).
        failed_before: source rows that stand in the table as failed and were left so; ``retry_failed=True`` asks again.
        source_rows: rows of the source.
        requests: distinct inputs that this run asked for.
        prompt_tokens: of the answers of this run's rows, twins and reused answers included.
        completion_tokens: likewise.
        paid_prompt_tokens: of answers inferred by this run, each once.
        paid_completion_tokens: likewise.
        seconds: wall time of the whole call.
        rows_per_second: rows without an error over ``seconds``.
        tokens_per_second: paid prompt and completion tokens over ``seconds``.
        failures: failed rows of this run by error code.
        table: the result table.
        table_version: its version after the last commit.
        source: the source's name.
        source_version: Delta version that was read, or None.
        writer: ``delta-spark``, ``delta-rs`` or ``memory``.
        run_id: the ``run_id`` column of this run's rows.
        mlflow_run_id: or None where nothing was tracked.
        model_name: as in the rows.
        model_version: as in the rows.
        config_hash: as in the rows.
        commits: versions of the table that this run made.
    """

    rows: int
    failed: int
    skipped: int
    reused: int
    already_done: int
    failed_before: int
    source_rows: int
    requests: int
    prompt_tokens: int
    completion_tokens: int
    paid_prompt_tokens: int
    paid_completion_tokens: int
    seconds: float
    table: str
    table_version: int
    source: str
    source_version: int | None
    writer: str
    run_id: str
    mlflow_run_id: str | None
    model_name: str
    model_version: str
    config_hash: str
    failures: Mapping[str, int] = field(default_factory=dict)
    commits: tuple[int, ...] = ()

    @property
    def valid_rows(self) -> int:
        """Rows of this run without an error."""
        return self.rows - self.failed

    @property
    def rows_per_second(self) -> float:
        """Rows without an error over the whole wall time."""
        return self.valid_rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Input and output tokens that were paid for over the whole wall time."""
        paid = self.paid_prompt_tokens + self.paid_completion_tokens
        return paid / self.seconds if self.seconds > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values."""
        derived = ("valid_rows", "rows_per_second", "tokens_per_second")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


def refuse_failures(result: RunResult, *, example: tuple[str, str, str] | None) -> None:
    """End with an error where rows failed, now or before; the good ones are committed.

    Args:
        result: of the job.
        example: ``(code, key, input_hash)`` of one failed row, or None.

    Raises:
        FailedRows: says how many, why, and which for example.
    """
    if not result.failed and not result.failed_before:
        return
    codes = ", ".join(f"{count} {code}" for code, count in sorted(result.failures.items()))
    named = f" For example {example[0]} at key {example[1]} (input_hash {example[2]})." if example else ""
    before = f" {result.failed_before} failed before; retry_failed=True asks again." if result.failed_before else ""
    raise FailedRows(
        f"{result.failed} of {result.rows} rows failed{f' ({codes})' if codes else ''}; the others are in {result.table}."
        f"{named}{before}"
    )
