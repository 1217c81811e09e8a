from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sparkinfer import host
from sparkinfer.errors import EngineStartFailed
from sparkinfer.host.election import engine_key
from sparkinfer.host.place import Place, engine_folder
from tests.support.engines import TASK, connect, drain, engine_pids, events, fake_spec, row


def test_the_engine_is_in_this_process_and_loaded_once(place: Place, log: Path) -> None:
    spec = fake_spec(log=log, load_ms=100)

    def task(number: int) -> None:
        client = host.connect_inline(spec, TASK)
        client.submit([row(number * 10 + i) for i in range(10)])
        drain(client, 10)
        client.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(task, range(4)))
    assert [event["pid"] for event in events(log, "load")] == [os.getpid()]
    assert len(events(log, "request")) == 40
    assert engine_pids(place.folder) == []


def test_inline_and_shared_give_the_same_answers(place: Place) -> None:
    spec = fake_spec()
    rows = [row(number) for number in range(30)]
    answers = []
    for client in (host.connect_inline(spec, TASK), connect(spec)):
        client.submit(rows)
        found = drain(client, 30)
        answers.append([replace(found[n], queue_ms=0, latency_ms=0, inferred_at=0.0) for n in range(30)])
        client.close()
    assert answers[0] == answers[1]


def test_twins_are_run_once_inline_too(place: Place, log: Path) -> None:
    client = host.connect_inline(fake_spec(log=log, answer="twins"), TASK)
    client.submit([row(number, "same") for number in range(5)])
    assert len(drain(client, 5)) == 5
    assert len(events(log, "request")) == 1
    client.close()


def test_live_counters_are_written_inline_too(place: Place, tmp_path: Path) -> None:
    client = host.connect_inline(fake_spec(answer="counted"), replace(TASK, progress_dir=str(tmp_path)))
    client.submit([row(number) for number in range(7)])
    drain(client, 7)
    client.close()
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["rows_done"] == 7


def test_memo_files_of_workers_that_are_gone_are_removed(place: Place) -> None:
    spec = fake_spec(answer="leftovers")
    left = engine_folder(place, engine_key(place, spec)).path / "memo-999999999.sqlite"
    left.touch()
    host.connect_inline(spec, TASK).close()
    assert not left.exists()
    assert left.with_name(f"memo-{os.getpid()}.sqlite").exists()


def test_a_model_that_does_not_load_raises_each_time(place: Place) -> None:
    for _ in range(2):
        with pytest.raises(EngineStartFailed, match="not today"):
            host.connect_inline(fake_spec(load_error="not today"), TASK)
