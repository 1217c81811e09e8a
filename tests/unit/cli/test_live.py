from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from sparkinfer.cli.live import LastLook, PlainLines, describe, watch
from sparkinfer.job.progress import Progress

HALF = Progress(
    phase="answering",
    rows_total=400,
    rows_done=200,
    buckets_total=8,
    buckets_done=3,
    running=12,
    waiting=3,
    seconds=61.0,
    rows_per_second=5.04,
    tokens_per_second=840.4,
    eta_seconds=39.6,
)


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=160, highlight=False), stream


def test_a_running_job_is_told_with_rows_rates_and_time_left() -> None:
    assert describe(HALF) == "200/400 rows, 5.0 rows/s, 840 tokens/s, 0:00:40 left, 12 running, 3 waiting"


def test_failed_rows_are_told_as_soon_as_there_are_any() -> None:
    assert "200/400 rows, 7 failed," in describe(
        Progress(phase="answering", rows_total=400, rows_done=200, rows_failed=7)
    )


def test_before_the_first_answer_the_engine_is_starting() -> None:
    assert describe(Progress(phase="answering", rows_total=400)) == "starting the engine, 400 rows to do"
    assert "once" in describe(Progress(phase="answering", rows_total=400, seconds=60.0))


def test_when_all_rows_are_answered_the_table_is_what_is_waited_for() -> None:
    answered = replace(HALF, rows_done=400, eta_seconds=0.0)
    assert describe(answered) == "all 400 rows answered, 3 of 8 parts are in the table"


def test_rates_are_not_guessed_from_the_first_rows() -> None:
    first = replace(HALF, rows_done=3, eta_seconds=9e5)
    assert describe(first) == "3/400 rows, 12 running, 3 waiting"


@pytest.mark.parametrize("phase", ["reading", "staging", "done"])
def test_other_phases_are_told_by_name_only(phase: str) -> None:
    assert "rows/s" not in describe(Progress(phase=phase, rows_total=9, rows_done=9))


def test_plain_lines_come_every_few_seconds_and_at_each_new_phase() -> None:
    people, stream = console(terminal=False)
    now = iter([0.0, 1.0, 2.0, 7.0, 8.0])
    lines = PlainLines(people, every_s=5.0, clock=lambda: next(now))
    more = replace(HALF, rows_done=210)
    for progress in (Progress(phase="reading"), HALF, more, more, Progress(phase="done")):
        lines(progress)
    said = [line.split("  ")[1] for line in stream.getvalue().splitlines()]
    assert said == ["comparing the source with the result table", describe(HALF), describe(more), "done"]


def test_a_plain_line_that_says_nothing_new_comes_seldom() -> None:
    people, stream = console(terminal=False)
    now = iter([0.0, 6.0, 14.0, 15.0])
    lines = PlainLines(people, every_s=5.0, again_s=15.0, clock=lambda: next(now))
    for seconds in (0.0, 6.0, 14.0, 15.0):
        lines(Progress(phase="reading", seconds=seconds))
    assert [line.split("  ")[0] for line in stream.getvalue().splitlines()] == ["0:00:00", "0:00:15"]


def test_elsewhere_than_on_a_terminal_there_are_no_escape_codes() -> None:
    people, stream = console(terminal=False)
    with watch(people) as draw:
        draw(HALF)
    assert stream.getvalue().startswith("0:01:01  200/400 rows")
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_a_bar() -> None:
    people, stream = console(terminal=True)
    with watch(people) as draw:
        draw(HALF)
    assert "50%" in stream.getvalue()
    assert "200/400 rows" in stream.getvalue()


def test_a_stopped_job_says_what_is_left() -> None:
    people, _ = console(terminal=False)
    seen = LastLook()
    assert "as it was" in seen.what_is_left("out/labels")
    with watch(people) as draw:
        seen.through(draw)(HALF)
    assert seen.what_is_left("out/labels") == (
        "Stopped with 3 of 8 buckets committed to out/labels; 200 of 400 rows were not answered yet."
    )
