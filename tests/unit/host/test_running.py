"""Asking a running engine: what it refuses or garbles is no answer, and nobody's failure."""

from __future__ import annotations

import threading
from multiprocessing.connection import Listener

import pytest

from sparkinfer.errors import ProtocolError
from sparkinfer.host import frames
from sparkinfer.host.election import RunningEngine
from sparkinfer.host.lineage import own_mark
from sparkinfer.host.place import EngineFolder, Place
from sparkinfer.host.running import dismiss, metrics
from sparkinfer.host.status import READY, Status

REFUSAL = frames.encode_control({"code": ProtocolError.code, "message": "The client speaks protocol 0, this engine 1."})


@pytest.mark.parametrize("answer", [REFUSAL, b"J{", b"J[]", None])
def test_an_engine_that_refuses_to_say_neither_leaves_nor_counts(answer: bytes | None, place: Place) -> None:
    folder = EngineFolder(place.folder / "engine")
    folder.path.mkdir()
    folder.token.write_text("token")
    mark = own_mark()
    status = Status(attempt="1", state=READY, time=0.0, log="log", pid=mark.pid, started=mark.started)
    status.save(folder.status)
    with Listener(str(folder.socket()), family="AF_UNIX") as listener:
        engine = threading.Thread(target=serve, args=(listener, answer, 2))
        engine.start()
        assert not dismiss(RunningEngine(mark, folder.socket(), "token", "log"))
        assert metrics(place) == []
        engine.join()


def serve(listener: Listener, answer: bytes | None, num_clients: int) -> None:
    for _ in range(num_clients):
        with listener.accept() as connection:
            connection.recv_bytes()
            if answer is not None:
                connection.send_bytes(answer)
