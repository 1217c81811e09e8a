"""What was really written into staging, read back on the driver: footers for rows, a few narrow columns for counts.

A Spark job that counts a small folder costs more than all its rows; Arrow reads the same files batch by batch, so that memory
does not grow with a bucket.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sparkinfer.job.answers import ASKED, ORIGIN, REUSED
from sparkinfer.job.counts import Counts
from sparkinfer.job.files import file_system
from sparkinfer.job.pending import OLD_BUCKET, REPLACE, STATE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem
    from pyarrow.parquet import ParquetFile

#: Column of staged rows: the first row of an input that was not in the table; its tokens were paid, and the attempts are its own.
PAID = "__paid"

_COUNTED = (
    "error_code",
    "finish_reason",
    "input_hash",
    "prompt_tokens",
    "completion_tokens",
    ORIGIN,
    PAID,
    STATE,
    OLD_BUCKET,
)
#: So many failed rows are looked at for the one that is named.
_EXAMPLES = 100


def rows_by_bucket(folder: str) -> dict[int, int]:
    """Rows below each ``bucket=N`` of a folder, from the files' footers."""
    fs, inside = file_system(folder)
    rows: dict[int, int] = {}
    for path in _parquet_files(fs, inside):
        found = re.search(r"/bucket=(\d+)/[^/]+$", path)
        if found is not None:
            with _opened(fs, path) as file:
                rows[int(found[1])] = rows.get(int(found[1]), 0) + file.metadata.num_rows
    return dict(sorted(rows.items()))


def rows_in(folder: str) -> int:
    """Rows of a folder, from the files' footers."""
    fs, inside = file_system(folder)
    rows = 0
    for path in _parquet_files(fs, inside):
        with _opened(fs, path) as file:
            rows += file.metadata.num_rows
    return rows


def count_rows(folder: str, *, key: Sequence[str]) -> tuple[Counts, int]:
    """Count the finished rows of a folder.

    Args:
        folder: of one bucket.
        key: columns that name a row in messages.

    Returns:
        The counts, and how many rows have no answer at all (there must be none).
    """
    total, lost = Counts(), 0
    for batch in _batches(folder, list(dict.fromkeys([*_COUNTED, *key]))):
        total += _counts_of(batch, key)
        lost += batch.column(ORIGIN).null_count
    return total, lost


def first_rows(folder: str, columns: Sequence[str], *, rows: int) -> tuple[dict[str, str | None], ...]:
    """A few rows as text."""
    for batch in _batches(folder, list(columns)):
        values = batch.slice(0, rows).select(list(columns)).to_pylist()
        return tuple({name: None if value is None else str(value) for name, value in row.items()} for row in values)
    return ()


def _counts_of(batch: pa.RecordBatch, key: Sequence[str]) -> Counts:
    import pyarrow.compute as pc

    is_skipped = pc.equal(batch.column("finish_reason"), "skipped")
    is_paid = pc.fill_null(batch.column(PAID), False)
    is_replace = pc.equal(batch.column(STATE), REPLACE)
    is_asked = pc.equal(batch.column(ORIGIN), ASKED)
    codes = pc.value_counts(batch.column("error_code").drop_null()).to_pylist()
    failures = {entry["values"]: entry["counts"] for entry in codes}
    prompt, completion = batch.column("prompt_tokens"), batch.column("completion_tokens")
    return Counts(
        rows=batch.num_rows,
        failed=sum(failures.values()),
        skipped=_sum(is_skipped),
        reused=_sum(pc.equal(batch.column(ORIGIN), REUSED)),
        requests=_sum(pc.and_(pc.and_(is_paid, is_asked), pc.invert(is_skipped))),
        replaces=_sum(is_replace),
        old_buckets=frozenset(batch.column(OLD_BUCKET).filter(is_replace).unique().to_pylist()),
        prompt_tokens=_sum(prompt),
        completion_tokens=_sum(completion),
        paid_prompt_tokens=_sum(prompt.filter(is_paid)),
        paid_completion_tokens=_sum(completion.filter(is_paid)),
        failures=failures,
        example=_example(batch, key) if failures else None,
    )


def _example(batch: pa.RecordBatch, key: Sequence[str]) -> tuple[str, str, str]:
    """Code, key and input_hash of one failed row, the one with the lowest key where keys are numbers."""
    failed = batch.filter(batch.column("error_code").is_valid()).slice(0, _EXAMPLES).to_pylist()
    named = [(row["error_code"], ", ".join(str(row[name]) for name in key), row["input_hash"]) for row in failed]
    return min(named, key=lambda example: (len(example[1]), example[1]))


def _sum(values: pa.Array) -> int:
    """Sum of numbers, or how many are true; nulls count nothing."""
    import pyarrow.compute as pc

    return int(pc.sum(values).as_py() or 0)


def _batches(folder: str, columns: list[str]) -> Iterator[Any]:
    fs, inside = file_system(folder)
    for path in _parquet_files(fs, inside):
        with _opened(fs, path) as file:
            yield from (batch for batch in file.iter_batches(columns=columns) if batch.num_rows)


def _opened(fs: FileSystem, path: str) -> ParquetFile:
    from pyarrow.parquet import ParquetFile

    return ParquetFile(path, filesystem=fs, coerce_int96_timestamp_unit="us")


def _parquet_files(fs: FileSystem, folder: str) -> list[str]:
    """Files that Spark has finished, in their order; those of open tasks lie in folders with an underscore."""
    from pyarrow.fs import FileSelector, FileType

    infos = fs.get_file_info(FileSelector(folder, recursive=True))
    inside = [(info.path, info.path.removeprefix(folder)) for info in infos if info.type == FileType.File]
    return sorted(
        path for path, below in inside if below.endswith(".parquet") and "/_" not in below and "/." not in below
    )
