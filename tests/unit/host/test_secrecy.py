"""What must not leave the engine: prompts, answers and tokens in logs, pickles on the socket."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import pytest

from sparkinfer.errors import ProtocolError
from sparkinfer.host import frames
from sparkinfer.host.channel import Channel
from sparkinfer.host.place import Place
from sparkinfer.host.running import running_engines
from tests.support.engines import TASK, connect, drain, engine_pid, eventually, fake_spec, row

SECRET = "Frieda-Mustermann-4711"


class Trap:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_no_text_of_a_row_stands_in_the_engines_log(place: Place, log: Path) -> None:
    spec = fake_spec(
        log=log, fail="broken", garbage="strange", crash_once="deadly", answer=f"answer {SECRET}", context=400
    )
    client = connect(spec)
    texts = [SECRET, f"broken {SECRET}", f"strange {SECRET}", f"deadly {SECRET}", SECRET * 100]
    client.submit([row(number, text) for number, text in enumerate(texts)])
    answers = drain(client, len(texts))
    assert {number for number, answer in answers.items() if not answer.ok} == {1, 4}
    assert SECRET in log.read_text()  # the fake's own account: it was really asked
    (engine,) = running_engines(place.folder)
    written = Path(engine.log).read_text()
    assert "ready after" in written
    assert "died with" in written
    for kept_back in (SECRET, engine.token, *(row(n, text).input_hash for n, text in enumerate(texts))):
        assert kept_back not in written
    client.close()


def test_neither_the_token_nor_the_task_is_in_the_process_list(place: Place) -> None:
    client = connect(fake_spec())
    (engine,) = running_engines(place.folder)
    process = Path(f"/proc/{engine.mark.pid}")
    shown = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    assert engine.token.encode() not in shown
    assert (TASK.prompt or "").encode() not in shown
    client.close()


@pytest.mark.parametrize("authentic", [False, True])
def test_a_pickle_on_the_socket_is_never_opened(place: Place, tmp_path: Path, authentic: bool) -> None:
    client = connect(fake_spec())
    (engine,) = running_engines(place.folder)
    trap = tmp_path / "opened"
    channel = Channel.connect(engine.socket)
    if authentic:
        hello = {
            "protocol": frames.PROTOCOL,
            "token": engine.token,
            "purpose": "task",
            "task": TASK.to_json(),
            "settings": {},
        }
        channel.send(frames.encode_control(hello))
        assert channel.receive(10) is not None
    channel.send(pickle.dumps(Trap(trap)))
    with pytest.raises((ProtocolError, ConnectionError)):
        while True:
            frame = channel.receive(10)
            assert frame is not None
            if "code" in (said := frames.decode_control(frame)):
                raise ProtocolError(str(said["message"]))
    channel.close()
    assert not trap.exists()
    client.submit([row(1)])
    assert drain(client, 1)[1].ok
    client.close()


def test_a_killed_engines_files_are_as_private_as_a_living_ones(place: Place) -> None:
    client = connect(fake_spec())
    os.kill(engine_pid(place), signal.SIGKILL)
    client.submit([row(1)])
    drain(client, 1)
    client.close()
    eventually(lambda: list(place.folder.glob("*/token")))
    for path in place.folder.rglob("*"):
        assert path.stat().st_uid == os.getuid()
        assert path.parent.stat().st_mode & 0o077 == 0
