"""Engines that are killed before they are ready, as the kernel does it when memory runs out during a load."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkinfer.config.settings import EngineSettings
from sparkinfer.errors import EngineStartFailed, EngineTimeout
from sparkinfer.host.place import Place
from tests.support.engines import connect, drain, engine_pids, events, eventually, fake_spec, row


def test_an_engine_killed_while_it_loads_is_started_again_for_everybody(place: Place, log: Path) -> None:
    spec = fake_spec(log=log, crash_loads=2, load_ms=100)

    def task(number: int) -> int:
        client = connect(spec)
        client.submit([row(number)])
        answers = drain(client, 1)
        client.close()
        return sum(answer.ok for answer in answers.values())

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(task, range(3))) == 3
    assert (len(events(log, "load_crash")), len(events(log, "load"))) == (2, 1)


def test_an_engine_whose_every_load_is_killed_is_given_up_with_the_end_of_its_log(place: Place, log: Path) -> None:
    spec = fake_spec(log=log, crash_loads=99, settings=EngineSettings(max_deaths=2))
    with pytest.raises(EngineStartFailed, match=r"ended 2 times .* memory") as caught:
        connect(spec)
    assert "sparkinfer-engine" in str(caught.value)
    assert len(events(log, "load_crash")) == 2
    assert engine_pids(place.folder) == []
    with pytest.raises(EngineStartFailed):  # a later job tries anew, and no more often
        connect(spec)
    assert len(events(log, "load_crash")) == 4


def test_an_engine_that_hangs_before_its_first_word_is_ended(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Python itself lies on a network folder whose server is gone."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\nif 'sparkinfer.host.main' in sys.orig_argv: time.sleep(600)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EngineTimeout, match="start_timeout_s"):
        connect(fake_spec(settings=EngineSettings(start_timeout_s=3.0)))
    eventually(lambda: engine_pids(place.folder) == [])


def test_a_load_killed_from_outside_costs_one_more_load(place: Place, log: Path) -> None:
    spec = fake_spec(log=log, load_ms=2500)
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(connect, spec)
        eventually(lambda: engine_pids(place.folder))
        (pid,) = engine_pids(place.folder)
        os.kill(pid, signal.SIGKILL)
        client = connecting.result()
    client.submit([row(1)])
    assert drain(client, 1)[1].ok
    client.close()


def test_killed_loads_do_not_use_up_the_deaths_that_a_poison_row_costs(place: Place, log: Path) -> None:
    client = connect(fake_spec(log=log, crash_loads=2, crash="poison"))
    client.submit([row(0, "poison"), *(row(n) for n in range(1, 4))])
    answers = drain(client, 4)
    assert {number: answer.error_code for number, answer in answers.items()} == {
        0: "POISON_ROW",
        1: None,
        2: None,
        3: None,
    }
    client.close()


def test_a_process_that_ends_before_it_can_say_anything_is_given_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")  # as a Python whose libraries are broken
    with pytest.raises(EngineStartFailed, match="ended 3 times"):
        connect(fake_spec())
