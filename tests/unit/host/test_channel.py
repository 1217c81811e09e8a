"""Frames over a socket whose two ends belong to two threads: one reads and closes, the other sends."""

import socket
import sys
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Listener
from pathlib import Path

import pytest

from sparkinfer.host import frames
from sparkinfer.host.channel import Channel
from sparkinfer.host.client import _Line
from sparkinfer.host.election import RunningEngine
from sparkinfer.host.lineage import own_mark
from tests.support.engines import TASK, fake_spec

FRAME = b"x" * 20_000  # so large that the header is written apart


@pytest.fixture
def fast_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("fast_switches")
def test_a_close_while_another_thread_sends_is_a_hang_up_to_it_and_nothing_is_written_elsewhere() -> None:
    for _ in range(200):
        ours, theirs = Pipe()
        channel, peer = Channel(ours), Channel(theirs)
        raised: list[BaseException] = []
        sender = threading.Thread(target=send_until_closed, args=(channel, raised))
        sender.start()
        peer.receive(1.0)
        channel.close()
        outer, inner = socket.socketpair()  # takes the freed descriptors
        sender.join()
        outer.setblocking(False)
        inner.setblocking(False)
        with pytest.raises(BlockingIOError):
            outer.recv(1)
        with pytest.raises(BlockingIOError):
            inner.recv(1)
        outer.close()
        inner.close()
        peer.close()
        assert [type(error) for error in raised] == [ConnectionError]


def send_until_closed(channel: Channel, raised: list[BaseException]) -> None:
    try:
        while True:
            channel.send(FRAME)
    except BaseException as error:
        raised.append(error)


def test_whatever_ends_the_reading_thread_is_told_to_its_task(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Listener(str(path), family="AF_UNIX") as listener:
        engine = threading.Thread(target=tell_nonsense, args=(listener,))
        engine.start()
        line = _Line(RunningEngine(own_mark(), path, "token", "log"), fake_spec(), TASK)
        told = line.next(20.0)
        line.hang_up()
        engine.join()
    assert isinstance(told, TypeError)


def tell_nonsense(listener: Listener) -> None:
    with listener.accept() as connection:
        connection.recv_bytes()
        connection.send_bytes(frames.encode_control({"ready": True}))
        connection.send_bytes(frames.encode_control({"busy_s": "much"}))
        connection.poll(30.0)
