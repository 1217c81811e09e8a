"""The window: small until the reader had time to hang up, bounded by rows and bytes ever after."""

from __future__ import annotations

from sparkinfer.udf.window import (
    CAUTIOUS_ROWS,
    FIRST_ROWS,
    LONG_PATIENCE_S,
    MAX_BYTES,
    MAX_ROWS,
    PATIENCE_S,
    Window,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _open(window: Window) -> int:
    rows = window.room()
    window.opened(rows, 0, requests=rows)
    return rows


def test_before_an_answer_few_rows_are_open():
    window = Window(reads_all=False, clock=Clock())
    assert _open(window) == FIRST_ROWS
    assert window.room() == 0


def test_a_reader_that_hangs_up_has_paid_for_the_cautious_rows_at_most():
    window = Window(reads_all=False, clock=Clock())
    paid = _open(window)
    window.answered()
    for _ in range(10):
        window.yielded(1, 0)
        paid += _open(window)
    assert paid == CAUTIOUS_ROWS <= 64


def test_a_reader_that_stays_gets_a_window_that_doubles_up_to_its_bound():
    clock = Clock()
    window = Window(reads_all=False, clock=clock)
    open_rows = _open(window)
    window.answered()
    window.yielded(open_rows, 0)
    clock.now += PATIENCE_S
    seen = []
    for _ in range(10):
        rows = _open(window)
        seen.append(rows)
        window.yielded(rows, 0)
    assert seen == sorted(seen)
    assert seen[-1] == MAX_ROWS


def test_a_long_first_row_does_not_starve_the_engine_for_ever():
    clock = Clock()
    window = Window(reads_all=False, clock=clock)
    _open(window)
    window.answered()
    _open(window)
    assert window.room() == 0
    clock.now += LONG_PATIENCE_S
    assert window.room() == 0, "as many rows are open as a window of this size holds"
    window.yielded(1, 0)
    assert window.room() > 1


def test_a_job_that_reads_all_starts_at_full_size():
    assert Window(reads_all=True, clock=Clock()).room() == MAX_ROWS


def test_bytes_bound_it_but_one_row_always_fits():
    window = Window(reads_all=True, clock=Clock())
    window.opened(1, 10 * MAX_BYTES, requests=1)
    assert window.room() == 0
    window.yielded(1, 10 * MAX_BYTES)
    assert window.room() == MAX_ROWS


def test_rows_that_need_no_engine_do_not_use_up_the_cautious_rows():
    window = Window(reads_all=False, clock=Clock())
    for _ in range(100):
        window.opened(FIRST_ROWS, 0, requests=0)
        window.yielded(FIRST_ROWS, 0)
    assert window.room() == FIRST_ROWS
