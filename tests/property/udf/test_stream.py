"""Whatever the batches, nulls, order of completions and readers: rows out are rows in, in order, each answered from its own text."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.config.specs import TaskSpec
from sparkinfer.types import Completion
from sparkinfer.udf.answers import arrow_safe
from sparkinfer.udf.reading import RowReader
from sparkinfer.udf.slices import Slices
from sparkinfer.udf.stream import RowStream
from sparkinfer.udf.window import Window

TEXTS = st.one_of(st.none(), st.text(max_size=5), st.sampled_from(["", " ", "nan", "None"]))
BATCHES = st.lists(st.lists(TEXTS, max_size=30), max_size=6)


class Client:
    """Answers a drawn number of open rows at a drawn place."""

    def __init__(self, draws) -> None:
        self._draws = draws
        self._open = []
        self.asked = []

    def submit(self, requests):
        self._open.extend(requests)
        self.asked.extend(requests)

    def poll(self, timeout):
        start = next(self._draws) % len(self._open)
        done, self._open = self._open[start:], self._open[:start]
        return [Completion(row=r.row, input_hash=r.input_hash, result=r.values[0]) for r in reversed(done)]

    def close(self):
        self._open.clear()


def _draws(numbers):
    while True:
        yield from numbers


@settings(max_examples=60, deadline=None)
@given(
    batches=BATCHES,
    numbers=st.lists(st.integers(0, 1000), min_size=1, max_size=20),
    reads_all=st.booleans(),
    skip_blank=st.booleans(),
)
def test_rows_out_are_rows_in(batches, numbers, reads_all, skip_blank):
    rows = [text for batch in batches for text in batch][: 48 if not reads_all else None]
    if not reads_all:  # a longer partition would wait for its reader, which is a matter of time
        batches = [rows]
    client = Client(_draws(numbers))
    stream = RowStream(
        reader=RowReader(TaskSpec(prompt=None, names=("text",))),
        connect=lambda: client,
        window=Window(reads_all=reads_all),
        skip_blank=skip_blank,
    )
    read = 0
    found = []

    def counted():
        nonlocal read
        for batch in batches:
            read += len(batch)
            yield pa.array(batch, pa.string())

    for chunk in stream.answer(Slices(counted())):
        found += [completion.result for completion in chunk]
        assert len(found) <= read
    assert found == [None if text is None or (skip_blank and not text.strip()) else text for text in rows]
    assert len(client.asked) == sum(text is not None and not (skip_blank and not text.strip()) for text in rows)


@given(st.text(alphabet="aä🙂\ufffd\x00\ud83d\ude42\udfff", max_size=12))
def test_every_text_is_made_safe_for_arrow_and_safe_text_stays(text):
    safe = arrow_safe(text)
    assert pa.array([safe], pa.string()).to_pylist() == [safe]
    assert arrow_safe(safe) == safe
    try:
        text.encode()
    except UnicodeEncodeError:
        assert "\ufffd" in safe or len(safe) < len(text)
    else:
        assert safe == text
