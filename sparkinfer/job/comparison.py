"""The source against the result table: what is pending, and the empty table where there was none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkinfer.errors import TableSchemaMismatch
from sparkinfer.job.chunks import bucket_number
from sparkinfer.job.failures import translated
from sparkinfer.job.increment import Increment
from sparkinfer.job.pending import Survey, survey, with_state
from sparkinfer.job.spec import JobSpec, check_table
from sparkinfer.sink.base import BUCKETS_PROPERTY, VERSION_PROPERTY, Sink, TableColumn, TableFacts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Buckets of a table that was not made by run() and says nothing about them.
DEFAULT_BUCKETS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The source's rows against the table at one version.

    Attributes:
        snapshot: the table.
        states: the rows with what each is to it.
        survey: their counts.
    """

    snapshot: TableFacts
    states: DataFrame
    survey: Survey

    @property
    def buckets(self) -> int:
        """Into how many the table is cut, fixed when it was made so that two jobs cut alike."""
        return int(self.snapshot.properties.get(BUCKETS_PROPERTY, DEFAULT_BUCKETS))


def compare(
    sink: Sink,
    rows: DataFrame,
    *,
    spec: JobSpec,
    expected: tuple[TableColumn, ...],
    config_hash: str,
    snapshot: TableFacts | None,
    buckets: int | None,
    increment: Increment | None = None,
) -> Comparison:
    """Check the key, count what is pending, and make the table where there is none.

    The key is checked before the table is made. Of two jobs that make it at once one is faster; the other reads it again and
    compares with what may be in it already.

    Args:
        sink: the table.
        rows: from :func:`sparkinfer.job.pending.keyed_rows`.
        spec: of the job.
        expected: the table's columns.
        config_hash: of the job.
        snapshot: the table now, or None.
        buckets: into how many a new table is cut; None: by its rows.
        increment: the source by its changes; it is tried first.

    Raises:
        NullKey, DuplicateKey: see :func:`sparkinfer.job.pending.survey`.
        TableSchemaMismatch: it exists with other columns.
        PermissionDenied, DiskFull: it cannot be made.
    """

    def against(facts: TableFacts | None) -> tuple[DataFrame, Survey]:
        with translated("Comparing the source with the table", place=sink.table):
            table = None if facts is None or facts.is_empty else sink.rows(facts.version)
            states = with_state(rows, table, spec=spec, config_hash=config_hash)
            return states, survey(states, spec=spec)

    if snapshot is not None:
        check_table(snapshot, expected, table=sink.table)
        changed = None if increment is None else increment.compare(sink, snapshot, rows)
        states, found = changed or against(snapshot)
        return Comparison(snapshot=snapshot, states=states, survey=found)
    states, found = against(None)
    number = buckets if buckets is not None else bucket_number(found.source_rows)
    sink.create(expected, {BUCKETS_PROPERTY: str(number), VERSION_PROPERTY: "1"})
    made = sink.facts()
    if made is None:
        raise TableSchemaMismatch(f"{sink.table} cannot become a table: something else is there. Name another place.")
    check_table(made, expected, table=sink.table)
    if not made.is_empty:
        states, found = against(made)
    return Comparison(snapshot=made, states=states, survey=found)
