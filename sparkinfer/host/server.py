"""The socket's side of the engine process: one reader and one writer thread a client, and a beat a second.

A client that does not read stops only its own writer; its rows wait in its outbox, which never holds more than that client
has asked for.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import TaskSpec
from sparkinfer.errors import HostError, ProtocolError, SparkInferError
from sparkinfer.host import frames
from sparkinfer.host.channel import Channel
from sparkinfer.host.service import Service
from sparkinfer.host.sweep import sweep
from sparkinfer.types import Completion

_LOG = logging.getLogger(__name__)
_BEAT = 1.0
_HELLO_TIMEOUT = 10.0
#: Beats are left out for a client that has not taken this many frames yet.
_MAX_UNREAD_FRAMES = 64
_BACKLOG = 128


class Server:
    """Listens and serves until the process ends.

    Args:
        service: the engine's.
        path: of the socket; its folder keeps others out.
        token: what a client must show.
        settings: the running engine's; a client with others is told in the log that these win.
    """

    def __init__(self, service: Service, path: Path, token: str, *, settings: EngineSettings) -> None:
        self._service = service
        self.token = token
        self._settings = settings
        self._clients: set[_ClientConnection] = set()
        self._idle_since = time.monotonic()
        self._abandoned: list[Listener] = []
        self._lock = threading.Lock()
        self.is_dismissed = False
        self._path = path
        path.unlink(missing_ok=True)
        sweep(path.parent)
        self._listener = self._listen()

    def start(self) -> None:
        """Accept, beat and write progress, each in a thread of its own: a folder that hangs must not stop the beats."""
        self._accept_from(self._listener)
        for name, work in (("beat", self._beat_all), ("progress", self._service.write_progress)):
            threading.Thread(target=_repeat, args=(work,), name=name, daemon=True).start()

    @property
    def is_reachable(self) -> bool:
        """Whether the socket's file is there; cleaners of temporary files may delete it, and then nobody new can connect."""
        return self._path.exists()

    def listen_anew(self) -> None:
        """Make the socket's file again.

        Raises:
            OSError: its folder is gone too.
        """
        fresh = self._listen()
        _LOG.warning("The engine's socket was deleted; it listens anew.")
        # Its thread waits in accept(), and to close it would delete the new file.
        self._abandoned.append(self._listener)
        self._listener = fresh
        self._accept_from(fresh)

    @property
    def idle_s(self) -> float:
        """Seconds since the last client left; 0 while there is one."""
        with self._lock:
            return 0.0 if self._clients else time.monotonic() - self._idle_since

    def _listen(self) -> Listener:
        return Listener(str(self._path), family="AF_UNIX", backlog=_BACKLOG)

    def _accept_from(self, listener: Listener) -> None:
        threading.Thread(target=self._accept_all, args=(listener,), name="accept", daemon=True).start()

    def _accept_all(self, listener: Listener) -> None:
        while True:
            channel = None
            try:
                channel = Channel(listener.accept())
                threading.Thread(target=self._serve, args=(channel,), name="client", daemon=True).start()
            except (OSError, RuntimeError) as error:  # out of descriptors, or of threads: others have to end first
                _LOG.warning("A connection could not be accepted: %s.", error)
                if channel is not None:
                    channel.close()
                time.sleep(0.1)

    def _serve(self, channel: Channel) -> None:
        try:
            hello = self._hello(channel)
            if hello["purpose"] == "task":
                self._serve_task(channel, hello)
            else:
                channel.send(frames.encode_control(self._answer(hello["purpose"])))
        except ConnectionError as error:
            _LOG.info("A client hung up (%s).", error)
        except SparkInferError as error:
            _LOG.warning("A client was refused: %s", error)
            with contextlib.suppress(ConnectionError):
                channel.send(_error_frame(error))
        except Exception as error:  # a silent hang-up would have the client try again and again
            _LOG.exception("Serving a client failed.")
            with contextlib.suppress(ConnectionError):
                channel.send(_error_frame(HostError(f"The engine process could not serve this task: {error!r}.")))
        finally:
            channel.close()

    def _hello(self, channel: Channel) -> dict[str, Any]:
        if channel.peer_uid != os.getuid():
            raise ProtocolError(f"Only user {os.getuid()} may use this engine, not {channel.peer_uid}.")
        frame = channel.receive(_HELLO_TIMEOUT)
        if frame is None:
            raise ConnectionError("no hello in time")
        hello = frames.decode_control(frame)
        if not hmac.compare_digest(str(hello.get("token")).encode(), self.token.encode()):
            raise ProtocolError("The client's token is not this engine's; it may have found another engine's files.")
        if hello.get("protocol") != frames.PROTOCOL:
            raise ProtocolError(f"The client speaks protocol {hello.get('protocol')}, this engine {frames.PROTOCOL}.")
        return hello

    def _serve_task(self, channel: Channel, hello: Mapping[str, Any]) -> None:
        self._compare_settings(hello["settings"])
        client, session = _ClientConnection(channel), None
        with self._lock:
            self._clients.add(client)
        client.start()  # with signs of life from now on: opening a session reads from storage, which may be slow
        try:
            session = self._service.open(TaskSpec.from_json(hello["task"]), client)
            channel.send(frames.encode_control({"ready": True}))
            while True:
                frame = channel.receive(_BEAT)
                if frame is not None:
                    requests, attempt = frames.decode_requests(frame)
                    self._service.submit(session, requests, attempt=attempt)
        finally:
            client.end()
            with self._lock:
                self._clients.discard(client)
                self._idle_since = time.monotonic()
            if session is not None:
                self._service.close(session)

    def _answer(self, purpose: str) -> dict[str, Any]:
        if purpose == "stats":
            return {"stats": {"loads": 1, "pid": os.getpid(), **self._service.stats()}}
        if purpose == "leave":
            with self._lock:
                self.is_dismissed = self.is_dismissed or not self._clients
            return {"leaving": self.is_dismissed}
        raise ProtocolError(f"A client wants {purpose!r}, which this engine does not know.")

    def _compare_settings(self, theirs: Mapping[str, Any]) -> None:
        # The device is part of the engine's key: the same by another name.
        mine = {**self._settings.to_dict(), "device": theirs.get("device")}
        differing = sorted(name for name, value in theirs.items() if mine.get(name) != value)
        if differing:
            _LOG.warning("A client asks for other settings (%s); the running engine's stay.", ", ".join(differing))

    def _beat_all(self) -> None:
        since = self._service.busy_since
        beat = {"busy_s": 0.0 if since is None else time.monotonic() - since}
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            client.beat(beat)


class _ClientConnection:
    """A client's outbox and the thread that empties it; implements :class:`sparkinfer.host.work.Outlet`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._outbox: queue.SimpleQueue[list[Completion] | bytes | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin to send."""
        threading.Thread(target=self._send_all, name="send", daemon=True).start()

    def deliver(self, completions: list[Completion]) -> None:
        """Put completions into the outbox."""
        self._outbox.put(completions)

    def fail(self, error: SparkInferError) -> None:
        """Tell the error and nothing more."""
        self._outbox.put(_error_frame(error))

    def beat(self, message: Mapping[str, Any]) -> None:
        """A sign of life, unless the client does not read."""
        if self._outbox.qsize() < _MAX_UNREAD_FRAMES:
            self._outbox.put(frames.encode_control(message))

    def end(self) -> None:
        """Let the thread end."""
        self._outbox.put(None)

    def _send_all(self) -> None:
        try:
            while (item := self._outbox.get()) is not None:
                self._channel.send(item if isinstance(item, bytes) else frames.encode_completions(item))
        except ConnectionError:
            self._channel.shut()  # wakes the reader, which ends the session


def _repeat(work: Callable[[], None]) -> None:
    """Once a beat, whatever comes of it: without beats every client takes the engine for hung and ends it."""
    while True:
        time.sleep(_BEAT)
        try:
            work()
        except Exception:
            _LOG.exception("What is done once a second failed; it is tried again.")


def _error_frame(error: SparkInferError) -> bytes:
    return frames.encode_control({"code": error.code, "message": error.message})
