from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest

from sparkinfer.host.memo import Memo
from sparkinfer.types import Completion, Usage


def answer(number: int) -> Completion:
    return Completion(row=number, input_hash=f"h{number}", result=f"text {number}", usage=Usage(prompt_tokens=number))


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_answers_beyond_the_memory_bound_come_back_from_the_file(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.sqlite", memory_bytes=10_000)
    for number in range(200):
        memo.put([(key(number), answer(number))])
    assert memo.held_bytes <= 10_000
    assert [memo.get(key(number)) for number in range(200)] == [answer(number) for number in range(200)]
    assert memo.held_bytes <= 10_000
    assert memo.get(key(999)) is None


def test_a_later_process_finds_the_answers_of_the_one_before(tmp_path: Path) -> None:
    Memo(tmp_path / "memo.sqlite", memory_bytes=1000).put([(key(1), answer(1))])
    assert Memo(tmp_path / "memo.sqlite", memory_bytes=1000).get(key(1)) == answer(1)


def test_the_first_answer_of_a_key_stays(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.sqlite", memory_bytes=1)
    memo.put([(key(1), answer(1)), (key(1), answer(2)), (key(3), answer(3))])
    assert memo.get(key(1)) == answer(1)


def test_without_a_file_the_oldest_answers_are_forgotten() -> None:
    memo = Memo(None, memory_bytes=5000)
    memo.put([(key(number), answer(number)) for number in range(100)])
    assert memo.get(key(0)) is None
    assert memo.get(key(99)) == answer(99)


def test_a_file_that_fails_later_costs_a_warning_and_not_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memo = Memo(tmp_path / "memo.sqlite", memory_bytes=10_000)
    memo.put([(key(1), answer(1))])
    with sqlite3.connect(tmp_path / "memo.sqlite") as other:
        other.execute("DROP TABLE answers")
    with caplog.at_level(logging.WARNING):
        memo.put([(key(2), answer(2))])
    assert "cannot be used any more" in caplog.text
    assert memo.get(key(1)) == answer(1)
    assert memo.get(key(2)) == answer(2)
    memo.close()


def test_a_broken_file_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "memo.sqlite").write_bytes(b"not a database, and long enough to be taken for one" * 100)
    memo = Memo(tmp_path / "memo.sqlite", memory_bytes=1)
    memo.put([(key(1), answer(1)), (key(2), answer(2))])
    assert memo.get(key(1)) == answer(1)
