"""The engine process seen from its clients. Real processes of the fake model."""

from __future__ import annotations

import os
import queue
import signal
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sparkinfer.config.settings import EngineSettings
from sparkinfer.engine.fake import FakeEngine
from sparkinfer.errors import EngineStartFailed, EngineTimeout, SparkInferError
from sparkinfer.host import frames
from sparkinfer.host.client import SharedClient, greet
from sparkinfer.host.election import RunningEngine
from sparkinfer.host.lineage import own_mark
from sparkinfer.host.place import Place
from sparkinfer.host.running import metrics, running_engines
from sparkinfer.host.server import Server
from sparkinfer.types import Completion, FinishReason, SamplingParams
from tests.support.engines import TASK, connect, drain, engine_pid, engine_pids, events, eventually, fake_spec, row
from tests.support.services import service_of


def test_many_first_tasks_at_once_load_one_engine(place: Place, log: Path) -> None:
    spec = fake_spec(log=log, load_ms=300)
    start = threading.Barrier(8)

    def task(number: int) -> int:
        start.wait()
        client = connect(spec)
        client.submit([row(number * 100 + i) for i in range(20)])
        answers = drain(client, 20)
        client.close()
        return len(answers)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(task, range(8))) == 160
    assert len(events(log, "load")) == 1
    assert len(events(log, "request")) == 160


def test_equal_inputs_are_run_once_and_answered_alike(place: Place, log: Path) -> None:
    client, other = connect(fake_spec(log=log, step_ms=50)), connect(fake_spec(log=log, step_ms=50))
    client.submit([row(1, "same"), row(2, "same"), row(3, "different")])
    other.submit([row(9, "same")])
    first, twin = drain(client, 3), drain(other, 1)
    client.submit([row(4, "same")])  # later: from the memo
    again = drain(client, 1)
    assert len(events(log, "request")) == 2
    assert first[1] == replace(first[2], row=1) == replace(twin[9], row=1) == replace(again[4], row=1)
    (counters,) = metrics()
    assert (counters["loads"], counters["requests"], counters["memo_hits"], counters["twins"]) == (1, 2, 1, 2)
    client.close()
    other.close()


def test_without_a_seed_equal_inputs_are_drawn_anew(place: Place, log: Path) -> None:
    task = replace(TASK, sampling=SamplingParams(temperature=1.0, seed=None))
    client = connect(fake_spec(log=log), task)
    client.submit([row(number, "same") for number in range(4)])
    drain(client, 4)
    client.close()
    assert len({event["noise_key"] for event in events(log, "request")}) == 4


def test_with_a_seed_the_noise_is_the_inputs_own(place: Place, log: Path) -> None:
    for seed in (1, 2):
        client = connect(
            fake_spec(log=log),
            replace(TASK, sampling=SamplingParams(temperature=1.0, seed=seed), config_hash=str(seed)),
        )
        client.submit([row(1, "a"), row(2, "b")])
        drain(client, 2)
        client.close()
    assert len({event["noise_key"] for event in events(log, "request")}) == 4
    assert len(events(log, "load")) == 1


def test_a_failing_row_is_data_and_the_others_go_on(place: Place, log: Path) -> None:
    client = connect(fake_spec(log=log, fail="broken", garbage="strange"))
    client.submit([*(row(number) for number in range(50)), row(50, "broken"), row(51, "strange")])
    answers = drain(client, 52)
    assert [a.row for a in answers.values() if not a.ok] == [50]
    assert (answers[50].error_code, answers[50].finish_reason) == ("INFERENCE_FAILED", FinishReason.ERROR)
    assert answers[51].ok
    assert "\ufffd" in str(answers[51].result)
    client.submit([row(53, "broken")])  # trying again can help: that is not remembered
    assert drain(client, 1)[53].attempts == 4
    assert sum("broken" in str(event["prompt"]) for event in events(log, "request")) == 8
    client.close()


def test_a_row_that_cannot_be_a_prompt_never_reaches_the_engine(place: Place, log: Path) -> None:
    client = connect(fake_spec(log=log, context=200), replace(TASK, sampling=SamplingParams(max_tokens=16)))
    client.submit([row(1, "x" * 5000), replace(row(2), params_json='{"no_such": 1}'), row(3)])
    answers = drain(client, 3)
    assert {number: answer.error_code for number, answer in answers.items()} == {
        1: "PROMPT_TOO_LONG",
        2: "INVALID_PARAMS",
        3: None,
    }
    client.close()
    assert len(events(log, "request")) == 1


def test_a_stop_string_ends_the_answer_before_it(place: Place) -> None:
    client = connect(fake_spec(answer="good. bad. ugly."), replace(TASK, sampling=SamplingParams(stop=(". b",))))
    client.submit([row(1)])
    answer = drain(client, 1)[1]
    assert (answer.result, answer.finish_reason) == ("good", FinishReason.STOP)
    client.close()


def test_what_only_a_gone_client_wanted_is_dropped(place: Place, log: Path) -> None:
    spec = fake_spec(log=log, step_ms=400, settings=EngineSettings(batch_timeout_ms=0, max_batch_size=1))
    client, other = connect(spec), connect(spec)
    client.submit([row(number) for number in range(30)])
    other.submit([row(1, "row 29")])  # of these it wants one
    client.close()
    assert drain(other, 1)[1].ok
    assert len(events(log, "request")) < 10
    other.close()


@pytest.mark.parametrize("num_clients", [1, 4])
def test_every_waiting_client_gets_the_engines_own_error(place: Place, num_clients: int) -> None:
    spec = fake_spec(load_error="no such weights", load_ms=500)

    def attempt(_: int) -> str:
        with pytest.raises(SparkInferError) as caught:
            connect(spec)
        assert isinstance(caught.value, EngineStartFailed)
        return str(caught.value)

    with ThreadPoolExecutor(num_clients) as pool:
        messages = list(pool.map(attempt, range(num_clients)))
    assert all("no such weights" in message for message in messages)
    assert engine_pids(place.folder) == []


def test_a_killed_engine_is_started_again_and_its_rows_are_asked_for_again(place: Place, log: Path) -> None:
    spec = fake_spec(log=log, step_ms=150, settings=EngineSettings(batch_timeout_ms=0, max_batch_size=10))
    client = connect(spec)
    client.submit([row(number) for number in range(60)])
    answers = {c.row: c for c in _first(client)}
    os.kill(engine_pid(place), signal.SIGKILL)
    answers |= drain(client, 60 - len(answers))
    assert sorted(answers) == list(range(60))
    assert all(answer.ok for answer in answers.values())
    assert {answer.attempts for answer in answers.values()} == {1, 2}
    assert len(events(log, "load")) == 2
    assert len(events(log, "request")) <= 60 + 10  # what was answered before is known to the new engine
    client.close()


def test_a_poison_row_is_found_and_the_others_finish(place: Place) -> None:
    client = connect(fake_spec(crash="poison"))
    client.submit([row(number) if number != 5 else row(5, "poison") for number in range(8)])
    answers = drain(client, 8)
    assert answers[5].error_code == "POISON_ROW"
    assert "log" in str(answers[5].error_message)
    assert all(answer.ok for number, answer in answers.items() if number != 5)
    client.submit([row(99, "poison")])  # quarantined: answered at once
    assert drain(client, 1)[99].error_code == "POISON_ROW"
    client.close()


def test_an_engine_without_clients_ends_and_leaves_only_its_answers(place: Place, log: Path) -> None:
    spec = fake_spec(log=log, settings=EngineSettings(batch_timeout_ms=0, idle_timeout_s=0.3))
    client = connect(spec)
    client.submit([row(1)])
    drain(client, 1)
    client.close()
    eventually(lambda: not engine_pids(place.folder))
    left = {path.name for path in place.folder.glob("*/*") if not path.name.startswith("memo.sqlite")}
    assert {name for name in left if not name.endswith(".log")} <= {"lock", "owner.json"}
    client = connect(spec)
    client.submit([row(2, "row 1")])
    assert drain(client, 1)[2].ok
    client.close()
    assert (len(events(log, "load")), len(events(log, "request"))) == (2, 1)


def test_the_engine_ends_with_sparks_folder_and_nothing_is_left(place: Place) -> None:
    client = connect(fake_spec())
    assert len(engine_pids(place.folder)) == 1
    assert place.block_manager is not None
    for path in sorted(place.block_manager.rglob("*"), reverse=True):  # as Spark does it, while the engine looks on
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    place.block_manager.rmdir()
    eventually(lambda: not engine_pids(place.folder), seconds=10)
    assert not place.block_manager.exists()
    client.close()


def test_an_engine_whose_socket_file_was_deleted_is_reached_again(place: Place, log: Path) -> None:
    spec = fake_spec(log=log, settings=EngineSettings(batch_timeout_ms=0, start_timeout_s=20))
    first = connect(spec)
    (engine,) = running_engines(place.folder)
    engine.socket.unlink()  # as a cleaner of temporary files does it
    each_is_answered(first, connect(spec))
    assert len(events(log, "load")) == 1


def each_is_answered(*clients: SharedClient) -> None:
    """A row of each client, which is closed then."""
    for number, client in enumerate(clients):
        client.submit([row(number)])
        assert drain(client, 1)[number].ok
        client.close()


def test_the_files_are_for_this_user_only(place: Place) -> None:
    client = connect(fake_spec())
    (engine,) = running_engines(place.folder)
    assert stat.S_IMODE(engine.socket.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((engine.socket.parent / "token").stat().st_mode) == 0o600
    client.close()


def refusal(engine: RunningEngine, hello: dict[str, object]) -> str:
    """What the engine says to this hello, and that it hangs up after it."""
    channel = greet(engine, hello)
    frame = channel.receive(30.0)
    assert frame is not None
    with pytest.raises(ConnectionError):
        channel.receive(30.0)
    channel.close()
    return str(frames.decode_control(frame)["message"])


def test_a_client_with_a_wrong_token_or_version_is_refused_and_the_engine_lives(place: Place) -> None:
    client = connect(fake_spec())
    (engine,) = running_engines(place.folder)
    hello = {"purpose": "task", "task": TASK.to_json(), "settings": {}}
    assert "token" in refusal(RunningEngine(engine.mark, engine.socket, "wrong", engine.log), hello)
    assert "protocol" in refusal(engine, {**hello, "protocol": frames.PROTOCOL + 1})
    client.submit([row(1)])
    assert drain(client, 1)[1].ok
    client.close()


def test_an_engine_that_has_no_thread_for_a_client_takes_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = queue.SimpleQueue[str]()
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "client" and not served.qsize():
            served.put("refused")
            raise RuntimeError("can't start new thread")
        begin(thread)

    with service_of(FakeEngine("fake:", EngineSettings())) as service:
        server = Server(service, tmp_path / "socket", "secret", settings=EngineSettings())
        monkeypatch.setattr(threading.Thread, "start", start)
        server.start()
        engine = RunningEngine(own_mark(), tmp_path / "socket", "secret", "")
        for purpose, answers in (("refused", False), ("stats", True)):
            try:
                channel = greet(engine, {"purpose": purpose})
                frame = channel.receive(10.0)
                channel.close()
            except ConnectionError:
                frame = None
            assert (frame is not None) == answers


def test_a_request_that_goes_out_by_half_ends_its_connection(place: Place) -> None:
    """The engine reads on where the sender gave up: the next frame would be taken for the rest of this one."""
    client = connect(fake_spec())
    line = client._line

    def gives_up(frame: bytes) -> None:
        raise ConnectionError("timed out")

    line.send = gives_up  # type: ignore[method-assign]
    client.submit([row(1)])
    assert drain(client, 1)[1].ok
    assert client._line is not line
    client.close()


def test_a_task_that_cannot_be_served_is_told_why(place: Place) -> None:
    with pytest.raises(SparkInferError, match="could not serve"):
        connect(fake_spec(), replace(TASK, prompt=7))  # type: ignore[arg-type]


def test_other_settings_meet_the_running_engine_which_says_so(place: Place, log: Path) -> None:
    first = connect(fake_spec(log=log))
    second = connect(fake_spec(log=log, settings=EngineSettings(max_batch_size=3, batch_timeout_ms=0)))
    (engine,) = running_engines(place.folder)
    assert "max_batch_size" in Path(engine.log).read_text()
    assert len(events(log, "load")) == 1
    first.close()
    second.close()


def test_an_answer_to_another_row_is_not_taken_and_the_row_is_asked_for_again(place: Place) -> None:
    client = connect(fake_spec(answer="mine"))
    strange = Completion(row=1, input_hash=row(7).input_hash, result="somebody else's")
    client._line._inbox.put([strange])  # as where its descriptor had been another client's
    client.submit([row(1)])
    assert drain(client, 1)[1].result == "mine"
    client.close()


def _first(client: object) -> list[object]:
    found: list[object] = []
    eventually(lambda: found.extend(client.poll(0.1)) or found)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("name", ["status.json", "token"])
@pytest.mark.parametrize("content", [None, b"", b"\xff{torn"], ids=["gone", "empty", "garbage"])
def test_an_engine_whose_other_files_were_lost_is_found_again(
    place: Place, log: Path, name: str, content: bytes | None
) -> None:
    """A cleaner of temporary files takes them as it takes the socket; the engine writes them anew."""
    spec = fake_spec(log=log, settings=EngineSettings(batch_timeout_ms=0, start_timeout_s=20))
    first = connect(spec)
    (path,) = place.folder.glob(f"*/{name}")
    path.unlink() if content is None else path.write_bytes(content)
    each_is_answered(first, connect(spec))
    assert len(events(log, "load")) == 1
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or name != "token"


def test_an_engine_whose_lock_file_was_lost_is_not_loaded_twice(place: Place, log: Path) -> None:
    spec = fake_spec(log=log)
    first = connect(spec)
    (path,) = place.folder.glob("*/lock")
    path.unlink()
    second = connect(spec)
    second.submit([row(1)])
    assert drain(second, 1)[1].ok
    assert len(events(log, "load")) == 1
    first.close()
    second.close()


def test_an_engine_that_stays_silent_behind_its_lock_is_said_with_its_place(place: Place, log: Path) -> None:
    first = connect(fake_spec(log=log))
    impatient = fake_spec(log=log, settings=EngineSettings(start_timeout_s=1.0))  # the same engine, as tests below say
    (path,) = place.folder.glob("*/status.json")
    os.kill(engine_pid(place), signal.SIGSTOP)
    try:
        path.unlink()
        with pytest.raises(EngineTimeout, match="have not said where it listens"):
            connect(impatient)
    finally:
        for pid in engine_pids(place.folder):
            os.kill(pid, signal.SIGCONT)
    first.close()
