"""A source with a change data feed: only its changes are read, and the outcome is that of comparing all of it."""

from __future__ import annotations

from typing import Any

import pytest

from sparkinfer.errors import DuplicateKey
from tests.support.reads import Reads

ROWS = 300


class Feed:
    """A Delta source that records its changes."""

    def __init__(self, job: Any, rows: int) -> None:
        self.path = str(job.folder / "source")
        self._spark = job.spark
        self._table = f"delta.`{self.path}`"
        self.sql(
            "CREATE TABLE {} (id BIGINT, text STRING, note STRING) USING DELTA TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        )
        self.sql(f"INSERT INTO {{}} SELECT id, concat('text ', id % 3), 'n' FROM range({rows})")

    def sql(self, statement: str) -> None:
        self._spark.sql(statement.format(self._table)).collect()


def test_only_changes_are_read_and_the_outcome_is_the_same(job: Any) -> None:
    source, reads = Feed(job, ROWS), Reads(job.spark)

    def run() -> tuple[Any, int]:
        reads.since()
        return job.run(source.path, buckets=1), reads.since()

    first, whole = run()
    assert (first.rows, first.requests) == (ROWS, 3)
    again, nothing = run()
    assert (again.rows, again.already_done, again.source_rows) == (0, ROWS, ROWS)
    assert nothing < ROWS

    source.sql("INSERT INTO {} VALUES (1000, 'text 0', 'n'), (1001, 'something new', 'n')")
    source.sql("UPDATE {} SET text = 'another text' WHERE id = 7")
    source.sql("UPDATE {} SET note = 'changed' WHERE id = 8")
    source.sql("DELETE FROM {} WHERE id = 9")
    source.sql("INSERT INTO {} VALUES (1002, 'came', 'n')")
    source.sql("DELETE FROM {} WHERE id = 1002")
    changed, _ = run()
    assert (changed.rows, changed.requests, changed.reused) == (3, 2, 1)
    assert (changed.source_rows, changed.already_done, changed.failed_before) == (ROWS + 1, ROWS - 2, 0)
    rows = {row.id: row for row in job.rows()}
    assert len(rows) == ROWS + 2, "the deleted row's answer stays"
    assert {i for i, row in rows.items() if row.run_id == changed.run_id} == {7, 1000, 1001}

    source.sql("INSERT INTO {} VALUES (2000, 'text 1', 'n')")
    one_more, few = run()
    assert (one_more.rows, one_more.source_rows) == (1, ROWS + 2)

    job.run(job.frame([(5000, "from elsewhere")]), buckets=1)
    source.sql("INSERT INTO {} VALUES (1003, 'text 1', 'n')")
    behind_another, all_of_it = run()
    assert (behind_another.rows, behind_another.source_rows) == (1, ROWS + 3)
    print(
        f"rows read: first run {whole}, no change {nothing}, one new row {few}, the same behind another job {all_of_it}"
    )
    assert few <= all_of_it - ROWS, "the source was read"

    source.sql("UPDATE {} SET text = 'text 2' WHERE id = 7")
    behind_itself, _ = run()
    assert (behind_itself.rows, behind_itself.source_rows) == (1, ROWS + 3)


def test_what_the_feed_cannot_prove_is_compared_whole(job: Any) -> None:
    source = Feed(job, 4)
    job.run(source.path, buckets=1)

    source.sql("ALTER TABLE {} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    source.sql("INSERT INTO {} VALUES (10, 'text 0', 'n')")
    source.sql("ALTER TABLE {} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    source.sql("INSERT INTO {} VALUES (11, 'text 0', 'n')")
    gap = job.run(source.path)
    assert (gap.rows, gap.source_rows) == (2, 6), "a version without a feed"

    source.sql("DELETE FROM {} WHERE id = 10")
    source.sql("INSERT INTO {} VALUES (13, 'text 1', 'n')")
    assert job.run(source.path).rows == 1
    source.sql("INSERT INTO {} VALUES (10, 'text 0', 'n'), (12, 'text 0', 'n')")
    back = job.run(source.path)
    assert (back.rows, back.already_done, back.source_rows) == (1, 7, 8), "a key that came back has its old answer"

    source.sql("INSERT INTO {} VALUES (12, 'a second row of it', 'n')")
    with pytest.raises(DuplicateKey):
        job.run(source.path)
    source.sql("DELETE FROM {} WHERE text = 'a second row of it'")
    assert job.run(source.path).rows == 0


def test_after_failed_rows_all_is_compared_so_that_they_stay_counted(job: Any) -> None:
    job.options = "&fail=text 2"
    source = Feed(job, 4)
    first = job.run(source.path, buckets=1)
    assert first.failed == 1
    source.sql("INSERT INTO {} VALUES (10, 'text 0', 'n')")
    second = job.run(source.path)
    assert (second.rows, second.failed_before, second.already_done) == (1, 1, 3)


def test_a_run_that_was_interrupted_is_followed_by_a_whole_comparison(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparkinfer.job.commit import Committer

    source = Feed(job, 6)
    commits: list[Any] = []
    real = Committer.commit

    def stopped(self: Any, staged: Any, **beside: Any) -> Any:
        if commits:
            raise KeyboardInterrupt
        commits.append(staged)
        return real(self, staged, **beside)

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "commit", stopped)
        with pytest.raises(KeyboardInterrupt):
            job.run(source.path, buckets=4)
    assert 0 < len(job.rows()) < 6
    source.sql("INSERT INTO {} VALUES (10, 'text 0', 'n')")
    assert job.run(source.path).source_rows == 7
    assert [row.id for row in job.rows()] == [*range(6), 10]
