"""The ordered committer: one bucket after the other, each a compare-and-set that is looked for afterwards.

It knows no Spark and no model: staged rows come in, a version of the table comes out. Whatever goes wrong here, no request
is made again; the staged rows are compared with the table anew and committed once more.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkinfer.errors import CommitConflict, CommitFailed, SparkInferError
from sparkinfer.job.counts import Counts
from sparkinfer.sink.base import Commit, Sink, StagedRows, TableFacts

_LOG = logging.getLogger(__name__)

MAX_ATTEMPTS = 12
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBucket:
    """One bucket's finished rows, in a folder, counted; how often they were compared with the table anew."""

    bucket: int
    rows: StagedRows
    counts: Counts
    comparisons: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What became of a bucket: the version it made (None: nothing was left to write) and the rows in it."""

    bucket: int
    version: int | None
    counts: Counts
    attempts: int


class Committer:
    """Commits staged buckets into one table.

    Args:
        sink: the table.
        snapshot: the table as it was when the pending rows were computed.
        merge_keys: where an older row and the one that replaces it are equal.
        metadata: goes beside each commit; holds ``run_id``.
        restage: the rows of a staged bucket that a newer table does not have yet, staged and counted again.
        doubles: rows of the table at a version, staged, that are superseded: their key is one of the staged bucket's (of no
            bucket: any) and stands there twice. None: keys cannot stand twice, for the key holds the input.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        snapshot: TableFacts,
        merge_keys: Sequence[str],
        metadata: Mapping[str, Any],
        restage: Callable[[StagedBucket, TableFacts], StagedBucket],
        doubles: Callable[[StagedBucket | None, int], StagedRows | None] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sink = sink
        self._snapshot = snapshot
        self._merge_keys = tuple(merge_keys)
        self._metadata = dict(metadata)
        self._restage = restage
        self._doubles = doubles
        self._pause = pause
        self._last = snapshot.version
        #: A version without the rows that were last taken out; None while none were.
        self.settled: int | None = None
        # Once another writer was seen, the rows of later buckets were compared with an older table: they are compared again.
        self._is_alone = True

    def commit(self, staged: StagedBucket, *, beside: Mapping[str, Any] | None = None) -> Committed:
        """Write one bucket, however often that takes.

        Args:
            staged: its rows.
            beside: further metadata of this commit.

        Raises:
            PermissionDenied, DiskFull: the place cannot be written.
            CommitFailed: it failed for good, or lost too often against other writers.
        """
        snapshot = self._snapshot
        if not self._is_alone:
            snapshot, staged = self._compared_again(staged)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            if staged.counts.rows == 0:
                return Committed(bucket=staged.bucket, version=None, counts=staged.counts, attempts=attempt)
            version = self._attempt(staged, snapshot, beside or {})
            if version is not None:
                self._after(staged, version)
                return Committed(bucket=staged.bucket, version=version, counts=staged.counts, attempts=attempt)
            _LOG.info("Bucket %d of %s: another writer was faster; comparing again.", staged.bucket, self._sink.table)
            self._wait(attempt)
            snapshot, staged = self._compared_again(staged)
        raise CommitFailed(
            f"Bucket {staged.bucket} of {self._sink.table} lost {MAX_ATTEMPTS} times against other writers. "
            "Run the job again when they are done."
        )

    def settle(self) -> None:
        """Of all keys that stand twice in the table keep the newest row: who should have done that was killed before.

        Raises:
            CommitFailed: it lost too often against other writers.
        """
        if self._doubles is not None:
            self._is_alone = False  # what others committed since the snapshot is looked at before the first bucket is
            self._settle(None, self._newest(self._snapshot).version, self._doubles)

    def check_same_table(self) -> None:
        """Whether the table is the one that the job began with: a writer makes one anew where it was removed.

        Raises:
            CommitFailed: it is another one, or gone.
        """
        self._newest(self._snapshot)

    def _compared_again(self, staged: StagedBucket) -> tuple[TableFacts, StagedBucket]:
        """The newest table, and what of the bucket it does not have."""
        snapshot = self._newest(self._snapshot)
        if snapshot.version > self._last:
            self._is_alone = False
        self._last = snapshot.version
        return snapshot, self._restage(staged, snapshot)

    def _after(self, staged: StagedBucket, version: int) -> None:
        """See from the version that a commit made whether others committed since its rows were compared.

        The compare-and-set is a bucket's, and a bucket is one of inputs: two jobs that give one new key different inputs meet
        in none. Whoever of them commits later sees the other's commit here. Alone, that costs nothing.
        """
        if version == self._last + 1:
            self._last = version
            return
        self._is_alone = False
        self.check_same_table()
        if self._doubles is not None:
            self._settle(staged, version, self._doubles)

    def _settle(
        self,
        staged: StagedBucket | None,
        version: int,
        doubles: Callable[[StagedBucket | None, int], StagedRows | None],
    ) -> None:
        """Of keys that stand twice keep the newest row, which every job that looks takes for the newest."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            superseded = doubles(staged, version)
            if superseded is None:
                return
            try:
                self._sink.remove(
                    superseded,
                    superseded.columns,
                    {**self._metadata, "settles": None if staged is None else staged.bucket},
                )
            except CommitConflict:
                self._wait(attempt)
                version = self._newest(self._snapshot).version
            else:
                self.settled = self._newest(self._snapshot).version
                return
        raise CommitFailed(
            f"Keys stand twice in {self._sink.table}, written by two jobs at once, and the older rows "
            f"could not be taken out in {MAX_ATTEMPTS} attempts against other writers. Run the job again when they are done."
        )

    def _wait(self, attempt: int) -> None:
        self._pause(random.uniform(0.5, 1.0) * min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt))

    def _attempt(self, staged: StagedBucket, snapshot: TableFacts, beside: Mapping[str, Any]) -> int | None:
        """Try once; the version made, or None where another writer was faster."""
        commit = Commit(
            table_id=snapshot.table_id,
            bucket=staged.bucket,
            sequence=snapshot.sequence(staged.bucket) + 1,
            metadata={**self._metadata, **beside, "counts": staged.counts.numbers()},
        )
        try:
            if staged.counts.replaces:
                self._sink.merge(staged.rows, self._merge_keys, commit, within=_known(staged.counts.old_buckets))
            else:
                self._sink.append(staged.rows, commit)
        except CommitConflict:
            return self._sink.find(commit)
        except SparkInferError as error:
            version = self._found_after(error, commit)
            if version is None:
                raise
            return version
        return self._sink.find(commit)

    def _found_after(self, error: SparkInferError, commit: Commit) -> int | None:
        """A commit may have landed although its writer raised; the history knows."""
        try:
            version = self._sink.find(commit)
        except SparkInferError:
            return None  # the first error says more
        if version is not None:
            _LOG.warning("Bucket %d was committed as version %d although: %s", commit.bucket, version, error)
        return version

    def _newest(self, old: TableFacts) -> TableFacts:
        facts = self._sink.facts()
        if facts is None or facts.table_id != old.table_id:
            raise CommitFailed(f"{self._sink.table} was dropped or made anew while the job ran. Run the job again.")
        return facts


def _known(buckets: Collection[int | None]) -> tuple[int, ...] | None:
    """The buckets that the replaced rows are in, or None where one of them is not known."""
    known = sorted(bucket for bucket in buckets if bucket is not None)
    return tuple(known) if known and len(known) == len(buckets) else None
