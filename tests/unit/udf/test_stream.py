"""A partition through a client that answers as it likes: same rows, same order, nothing held that need not be."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from sparkinfer.config.specs import TaskSpec
from sparkinfer.errors import EngineDied, WrongColumnType
from sparkinfer.types import Completion
from sparkinfer.udf import window as window_module
from sparkinfer.udf.reading import RowReader
from sparkinfer.udf.slices import Slices
from sparkinfer.udf.stream import RowStream
from sparkinfer.udf.window import CAUTIOUS_ROWS, FIRST_ROWS, MAX_ROWS, Window


class ShufflingClient:
    """Answers what it was asked, a few at a time and in any order."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._open = []
        self.asked = 0
        self.most_open = 0
        self.most_bytes = 0
        self.is_closed = False

    def submit(self, requests):
        self._open.extend(requests)
        self.asked += len(requests)
        self.most_bytes = max(self.most_bytes, sum(len(r.values[0]) for r in requests))
        self.most_open = max(self.most_open, len(self._open))

    def poll(self, timeout):
        self._rng.shuffle(self._open)
        count = self._rng.randint(1, max(1, len(self._open)))
        done, self._open = self._open[:count], self._open[count:]
        return [Completion(row=r.row, input_hash=r.input_hash, result=f"<{r.values[0]}>") for r in done]

    def close(self):
        self.is_closed = True


def _stream(client, *, reads_all=True, skip_blank=False) -> RowStream:
    return RowStream(
        reader=RowReader(TaskSpec(prompt=None, names=("text",))),
        connect=lambda: client,
        window=Window(reads_all=reads_all),
        skip_blank=skip_blank,
    )


def _batches(sizes, *, made=None):
    number = 0
    for size in sizes:
        if made is not None:
            made.append(size)
        yield pa.array([f"t{i}" for i in range(number, number + size)], pa.string())
        number += size


@pytest.mark.parametrize("reads_all", [True, False])
@pytest.mark.parametrize("sizes", [[], [0], [1], [0, 3, 0, 0, 5], [100], [7] * 20, [40, 1, 40]])
def test_every_row_is_answered_once_in_order(sizes, reads_all):
    client = ShufflingClient()
    found = [c.result for chunk in _stream(client, reads_all=reads_all).answer(Slices(_batches(sizes))) for c in chunk]
    assert found == [f"<t{i}>" for i in range(sum(sizes))]
    assert client.asked == sum(sizes)
    assert client.is_closed == (sum(sizes) > 0)


def test_an_empty_partition_never_connects():
    def connect():
        raise AssertionError("connected for nothing")

    stream = RowStream(
        reader=RowReader(TaskSpec(prompt=None, names=("text",))),
        connect=connect,
        window=Window(reads_all=False),
        skip_blank=True,
    )
    nulls = iter([pa.array([None, None], pa.string()), pa.array([], pa.string()), pa.array([" ", "\t"], pa.string())])
    assert [c.finish_reason.value for chunk in stream.answer(Slices(nulls)) for c in chunk] == ["skipped"] * 4


def test_no_more_rows_are_held_than_the_window_and_batches_are_read_when_they_are_needed():
    client, made = ShufflingClient(), []
    stream = _stream(client).answer(Slices(_batches([1000] * 20, made=made)))
    rows = 0
    for chunk in stream:
        rows += len(chunk)
        assert sum(made) - rows <= MAX_ROWS + 1000
    assert rows == 20_000
    assert client.most_open <= MAX_ROWS


def test_a_reader_that_stops_early_closes_the_client_at_once_and_paid_for_few():
    client = ShufflingClient()
    stream = _stream(client, reads_all=False).answer(Slices(_batches([1000])))
    next(stream)
    stream.close()
    assert client.is_closed
    assert FIRST_ROWS <= client.asked <= CAUTIOUS_ROWS


def test_what_the_client_cannot_mend_is_raised_and_the_client_closed():
    class Dead(ShufflingClient):
        def poll(self, timeout):
            raise EngineDied("The engine died three times.")

    client = Dead()
    with pytest.raises(EngineDied):
        list(_stream(client).answer(Slices(_batches([3]))))
    assert client.is_closed


def test_a_wrong_column_is_refused_before_connecting():
    stream = RowStream(
        reader=RowReader(TaskSpec(prompt=None, names=("score",))),
        connect=lambda: pytest.fail("connected"),
        window=Window(reads_all=True),
        skip_blank=False,
    )
    with pytest.raises(WrongColumnType, match="cast it to string"):
        list(stream.answer(Slices(iter([pa.array([0.5])]))))


def test_rows_of_one_large_batch_are_asked_for_within_the_bound_of_bytes(monkeypatch):
    monkeypatch.setattr(window_module, "MAX_BYTES", 10_000)
    client = ShufflingClient()
    batch = pa.array(["x" * 1000] * 500 + ["y" * 30_000] + ["z"] * 10)
    answers = [c for part in _stream(client).answer(Slices(iter([batch]))) for c in part]
    assert [a.result for a in answers] == [f"<{text}>" for text in batch.to_pylist()]
    assert client.most_bytes == 30_000, "a row above the bound goes alone"
    assert client.asked == 511
