"""A source compared by its changes alone, where that is provably the same as comparing all of it.

It is, when all of this holds; else the whole source is compared, which is always right:

- the last commit of the result table ended a complete run of the same job (columns, key, configuration) over an older version of
  the same source, without a failed row, and all commits of that run follow each other: nobody else wrote since it compared;
- the source's change data feed covers every version since;
- no key was there twice at any version since, and the table has exactly the keys that the changes say it has.

Then every source row that did not change stands in the table with its input and configuration.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as sql

from sparkinfer.job.change_feed import ARRIVALS, CHANGE, VERSION, ChangeFeed
from sparkinfer.job.failures import failure_of
from sparkinfer.job.pending import NEW, STATE, Survey, keyed_rows, survey, with_state
from sparkinfer.job.spec import JobSpec
from sparkinfer.sink.base import PastCommit, Sink, TableFacts
from sparkinfer.sink.faults import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_LOG = logging.getLogger(__name__)

#: Under this name it stands beside a run's last commit.
COMPLETE = "complete"
#: Delta's own upkeep: it changes files, no rows.
_UPKEEP = ("OPTIMIZE", "VACUUM START", "VACUUM END")
_WAS_ABSENT = "__was_absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteRun:
    """What a run that did everything says beside its last commit.

    Attributes:
        job: digest of what decides a comparison.
        source_id: the source's table id.
        source_version: which version was read.
        source_rows: its rows.
        failed: rows of them that stand in the table as failed.
        compared_at: the result table's version that the source was compared with.
    """

    job: str
    source_id: str
    source_version: int
    source_rows: int
    failed: int
    compared_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """A source by its changes.

    Attributes:
        spark: the session.
        feed: the source's.
        schema: of the source.
        spec: of the job.
        config_hash: of the job.
    """

    spark: SparkSession
    feed: ChangeFeed
    schema: StructType
    spec: JobSpec
    config_hash: str

    @property
    def job(self) -> str:
        """Digest of what decides a comparison."""
        spec = self.spec
        said = [
            spec.arguments,
            spec.params,
            spec.key,
            spec.kept,
            spec.output,
            spec.mode,
            spec.logprobs,
            self.config_hash,
        ]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()

    def ended(self, *, source_rows: int, failed: int, compared_at: int) -> dict[str, Any]:
        """What stands beside the last commit of a run that did everything."""
        return {
            COMPLETE: {
                "job": self.job,
                "source_id": self.feed.table_id,
                "source_version": self.feed.version,
                "source_rows": source_rows,
                "failed": failed,
                "compared_at": compared_at,
            }
        }

    def compare(self, sink: Sink, facts: TableFacts, rows: DataFrame) -> tuple[DataFrame, Survey] | None:
        """The changed rows with what each is to the table, and the counts of the whole source; None: compare all of it.

        Args:
            sink: the result table.
            facts: the table now.
            rows: those of the whole source.

        Raises:
            JobError: the comparison was cancelled.
        """
        before = last_complete(facts.history)
        if before is None or not self._continues(before):
            return None
        if self.feed.version == before.source_version:
            return rows.limit(0), _survey_of(before.source_rows)
        try:
            frame = self.feed.since(self.spark, before.source_version)
            return self._compared(frame, before, sink.rows(facts.version))
        except Exception as error:
            if "cancel" in str(error).lower():
                raise failure_of(error, doing="Comparing the source's changes", place=sink.table) from error
            _LOG.info(
                "The change feed of %s cannot be used, all of it is compared: %s", self.feed.place, first_line(error)
            )
            return None

    def _continues(self, before: CompleteRun) -> bool:
        return (
            (before.job, before.source_id, before.failed) == (self.job, self.feed.table_id, 0)
            and before.source_version <= self.feed.version
            and not self.spec.retry_failed
        )

    def _compared(self, frame: DataFrame, before: CompleteRun, table: DataFrame) -> tuple[DataFrame, Survey] | None:
        columns = {f.name: f.dataType for f in frame.schema if f.name not in (CHANGE, VERSION)}
        if columns != {f.name: f.dataType for f in self.schema}:
            return None
        events = keyed_rows(frame, self.spec, beside=(CHANGE, VERSION))
        keys = _by_key(events)
        totals = keys.agg(
            sql.coalesce(sql.sum(sql.col("is_irregular").cast("long")), sql.lit(0)).alias("irregular"),
            sql.coalesce(sql.sum("net"), sql.lit(0)).alias("net"),
        ).collect()[0]
        if totals["irregular"]:
            return None
        arrived = keys.where("arrived").select("row.*", (sql.col("highest") == 1).alias(_WAS_ABSENT))
        states = with_state(arrived, table, spec=self.spec, config_hash=self.config_hash)
        doubtful = sql.col(_WAS_ABSENT) != (sql.col(STATE) == NEW)
        found = survey(states, spec=self.spec, doubtful=doubtful)
        if found.doubtful:
            return None
        rows = before.source_rows + int(totals["net"])
        _LOG.info("%s: %d changed rows since version %d", self.feed.place, found.source_rows, before.source_version)
        return states.drop(_WAS_ABSENT), _survey_of(rows, new=found.new, replaced=found.replaced)


def _survey_of(rows: int, *, new: int = 0, replaced: int = 0) -> Survey:
    """Counts of a whole source without failed rows."""
    return Survey(source_rows=rows, new=new, replaced=replaced, already_done=rows - new - replaced, failed_before=0)


def last_complete(history: Sequence[PastCommit]) -> CompleteRun | None:
    """The run that ended with the newest commit, if it was complete and alone; upkeep of the table aside.

    Args:
        history: of the result table, newest first.
    """
    commits = [commit for commit in history if commit.operation not in _UPKEEP]
    said = commits[0].metadata.get(COMPLETE) if commits else None
    if not isinstance(said, Mapping) or set(said) != {field.name for field in fields(CompleteRun)}:
        return None
    run = CompleteRun(**said)
    newest = commits[0]
    own = {c.version for c in commits if c.metadata.get("run_id") == newest.metadata.get("run_id")}
    upkeep = {c.version for c in history if c.operation in _UPKEEP}
    return run if set(range(run.compared_at + 1, newest.version + 1)) <= own | upkeep else None


def _by_key(events: DataFrame) -> DataFrame:
    """One row a changed key: whether it is there at the end and as which row, and how its presence went up and down.

    A key is regular when some presence at the beginning, no or yes, lets it be there at most once at every version.
    """
    arrives = sql.col(CHANGE).isin(*ARRIVALS)
    names = [name for name in events.columns if name not in (CHANGE, VERSION)]
    versions = events.groupBy("row_key", VERSION).agg(
        sql.count(sql.when(arrives, 1)).alias("came"),
        sql.count(sql.when(~arrives, 1)).alias("went"),
        sql.max_by(sql.struct(*names), arrives.cast("int")).alias("row"),
    )
    until = Window.partitionBy("row_key").orderBy(VERSION).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    step = sql.col("came") - sql.col("went")
    runs = versions.withColumn("there", sql.sum(step).over(until))
    highest, lowest = sql.greatest(sql.max("there"), sql.lit(0)), sql.least(sql.min("there"), sql.lit(0))
    twice = (sql.max("came") > 1) | (sql.max("went") > 1)
    return runs.groupBy("row_key").agg(
        sql.max_by("row", VERSION).alias("row"),
        (sql.max_by("came", VERSION) == 1).alias("arrived"),
        highest.alias("highest"),
        sql.sum(step).alias("net"),
        ((highest - lowest > 1) | twice).alias("is_irregular"),
    )
