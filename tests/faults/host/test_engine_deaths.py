"""Deaths, hangs and stopped clients of the engine process, as they come in the field. Slow: each death costs a start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkinfer.config.settings import EngineSettings
from sparkinfer.errors import EngineDied, EngineTimeout
from sparkinfer.host.place import Place
from sparkinfer.host.running import metrics, running_engines
from sparkinfer.host.status import READY, Status
from tests.support.engines import connect, drain, engine_pid, engine_pids, events, eventually, fake_spec, row


def test_two_poison_rows_in_one_batch_are_found_and_the_others_finish(place: Place, log: Path) -> None:
    client = connect(fake_spec(log=log, crash="poison"))
    client.submit([row(n) if n not in (3, 12) else row(n, f"poison {n}") for n in range(16)])
    answers = drain(client, 16, seconds=250)
    assert {n for n, answer in answers.items() if not answer.ok} == {3, 12}
    assert {answers[3].error_code, answers[12].error_code} == {"POISON_ROW"}
    client.close()


def test_rows_of_other_clients_outlive_a_poison_row(place: Place) -> None:
    spec = fake_spec(crash="poison", step_ms=20, settings=EngineSettings(batch_timeout_ms=0, max_batch_size=8))
    clients = [connect(spec) for _ in range(3)]
    for number, client in enumerate(clients):
        client.submit([row(n, f"client {number} row {n}") for n in range(20)])
    clients[0].submit([row(20, "poison")])
    with ThreadPoolExecutor(3) as pool:
        answers = list(
            pool.map(lambda item: drain(item[1], 21 if item[0] == 0 else 20, seconds=250), enumerate(clients))
        )
    assert answers[0][20].error_code == "POISON_ROW"
    assert sum(answer.ok for found in answers for answer in found.values()) == 60
    for client in clients:
        client.close()


def test_an_engine_that_keeps_dying_is_given_up_with_the_end_of_its_log(place: Place) -> None:
    # it never finishes a row, so no death is progress
    client = connect(fake_spec(step_ms=60_000, settings=EngineSettings(batch_timeout_ms=0, max_deaths=1)))
    client.submit([row(n) for n in range(8)])
    stop = threading.Event()
    killer = threading.Thread(target=_kill_whatever_runs, args=(place, stop))
    killer.start()
    try:
        with pytest.raises(EngineDied, match="died") as caught:
            drain(client, 8, seconds=250)
    finally:
        stop.set()
        killer.join()
    assert "log" in str(caught.value)
    with pytest.raises(EngineDied):
        client.poll(1)  # nor does a later call wait for an engine that was given up
    client.close()


def test_a_row_that_hangs_the_engine_is_found_and_the_others_finish(place: Place) -> None:
    settings = EngineSettings(batch_timeout_ms=0, stall_timeout_s=2.0)
    client = connect(fake_spec(hang="endless", settings=settings))
    client.submit([row(n) if n != 2 else row(2, "endless") for n in range(4)])
    answers = drain(client, 4, seconds=250)
    assert answers[2].error_code == "POISON_ROW"
    assert sum(answer.ok for answer in answers.values()) == 3
    client.close()


def test_a_stopped_engine_process_is_ended_and_started_again(place: Place) -> None:
    settings = EngineSettings(batch_timeout_ms=0, stall_timeout_s=3.0)
    client = connect(fake_spec(step_ms=300, settings=settings))
    first = engine_pid(place)
    client.submit([row(n) for n in range(4)])
    os.kill(first, signal.SIGSTOP)
    answers = drain(client, 4, seconds=120)
    assert all(answer.ok for answer in answers.values())
    assert first not in engine_pids(place.folder)
    client.close()


def test_an_engine_that_was_stopped_while_it_had_no_client_is_ended_and_started_again(place: Place) -> None:
    settings = EngineSettings(batch_timeout_ms=0, stall_timeout_s=3.0)
    spec = fake_spec(settings=settings)
    connect(spec).close()
    first = engine_pid(place)
    os.kill(first, signal.SIGSTOP)
    client = connect(spec)
    client.submit([row(n) for n in range(4)])
    assert all(answer.ok for answer in drain(client, 4, seconds=60).values())
    assert first not in engine_pids(place.folder)
    client.close()


def test_a_stopped_engine_does_not_outlive_its_executor(place: Place) -> None:
    connect(fake_spec()).close()
    (engine,) = engine_pids(place.folder)
    (socket,) = [found.socket for found in running_engines(place.folder)]
    os.kill(engine, signal.SIGSTOP)
    assert place.block_manager is not None
    shutil.rmtree(place.block_manager)
    eventually(lambda: not engine_pids(place.folder) and not socket.exists(), seconds=10)


def test_an_engine_and_its_guard_end_together(place: Place) -> None:
    connect(fake_spec()).close()
    (engine,) = engine_pids(place.folder)
    eventually(lambda: children_of(engine))
    (guard,) = children_of(engine)
    assert b"guard.py" in Path(f"/proc/{guard}/cmdline").read_bytes()
    os.kill(engine, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{guard}/stat").exists() or is_zombie(guard), seconds=5)


def test_a_start_that_takes_too_long_is_ended_for_everybody(place: Place) -> None:
    spec = fake_spec(load_ms=120_000, settings=EngineSettings(start_timeout_s=3.0))

    def attempt(_: int) -> str:
        with pytest.raises(EngineTimeout) as caught:
            connect(spec)
        return str(caught.value)

    with ThreadPoolExecutor(3) as pool:
        assert all("start_timeout_s" in message for message in pool.map(attempt, range(3)))
    eventually(lambda: not engine_pids(place.folder))


def test_a_stopped_client_blocks_nobody(place: Place) -> None:
    code = """
import sys
from tests.support.engines import connect, fake_spec, row
client = connect(fake_spec())
client.submit([row(n, "x" * 2000 + str(n)) for n in range(5000)])
print("submitted", flush=True)
sys.stdin.read()
"""
    stopped = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert stopped.stdout is not None
    assert stopped.stdout.readline().strip() == "submitted"
    stopped.send_signal(signal.SIGSTOP)
    client = connect(fake_spec())
    client.submit([row(n) for n in range(200)])
    assert len(drain(client, 200)) == 200
    stopped.send_signal(signal.SIGKILL)
    stopped.communicate()
    eventually(lambda: metrics()[0]["clients"] == 1)
    client.close()


def test_a_worker_that_is_killed_leaves_the_engine_and_the_answers(place: Place, log: Path) -> None:
    code = f"""
import os, signal
from tests.support.engines import connect, drain, fake_spec, row
client = connect(fake_spec(log={str(log)!r}))
client.submit([row(n) for n in range(20)])
drain(client, 20)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    client = connect(fake_spec(log=log))
    client.submit([row(n) for n in range(20)])
    assert all(answer.ok for answer in drain(client, 20).values())
    assert (len(events(log, "load")), len(events(log, "request"))) == (1, 20)
    client.close()


def _kill_whatever_runs(place: Place, stop: threading.Event) -> None:
    """SIGKILL every engine that has begun to run rows."""
    while not stop.is_set():
        for path in place.folder.glob("*/journal"):
            status = Status.load(path.with_name("status.json"))
            if status is not None and status.state == READY and path.read_bytes()[:4] not in (b"", b"\0\0\0\0"):
                status.mark.kill()
        time.sleep(0.05)


def children_of(pid: int) -> list[int]:
    """Child processes."""
    return [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_zombie(pid: int) -> bool:
    """Whether only its parent's wait is missing."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
