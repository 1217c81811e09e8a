"""A task's way to the engine process: hands rows over, gets completions, and outlives the engine's death."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NoReturn, Protocol

from sparkinfer.config.specs import EngineSpec, TaskSpec
from sparkinfer.errors import EngineDied, EngineTimeout, HostError, SparkInferError, by_code
from sparkinfer.host import frames
from sparkinfer.host.channel import Channel
from sparkinfer.host.election import RunningEngine, elect
from sparkinfer.host.lineage import ProcessMark
from sparkinfer.host.place import Place
from sparkinfer.types import Completion, Request

_LOG = logging.getLogger(__name__)
#: Seconds that a killed process may take until it is gone.
_DYING = 1.0
#: Hang-ups in a row without a completion and without a death of the engine, after which something else is wrong.
_MAX_HANGUPS = 5


class Client(Protocol):
    """What a task needs of an engine, shared or inline. One thread uses it."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand rows over; their numbers are unique among those not yet answered."""

    def poll(self, timeout: float) -> list[Completion]:
        """Completions that are there, in any order; waits up to ``timeout`` seconds for the first.

        Raises:
            HostError: the engine cannot go on; every row not yet answered is without an answer.
        """

    def close(self) -> None:
        """Hang up; rows not yet answered are given up."""


class SharedClient:
    """The client of this executor's engine process; implements :class:`Client`.

    Args:
        place: this executor.
        spec: which engine.
        task: what to ask.

    Raises:
        HostError: no engine could be had.
        ModelError: the model cannot be loaded here.
    """

    def __init__(self, place: Place, spec: EngineSpec, task: TaskSpec) -> None:
        self._place = place
        self._spec = spec
        self._task = task
        self._missing: dict[int, Request] = {}
        self._attempts: Counter[int] = Counter()
        self._hangups = 0
        self._error: SparkInferError | None = None
        self._connected_at = time.monotonic()
        self._line = self._connect()

    def submit(self, requests: Sequence[Request]) -> None:
        """See :meth:`Client.submit`."""
        for request in requests:
            self._missing[request.row] = request
        self._send(requests)

    def poll(self, timeout: float) -> list[Completion]:
        """See :meth:`Client.poll`; a dead engine is started again in here, and what it owed is asked for again."""
        if self._error is not None:
            raise self._error
        item = self._line.next(timeout)
        completions: list[Completion] = []
        while item is not None:
            if isinstance(item, Exception):
                if completions:
                    self._line.put_back(item)
                    break
                self._mend(item)
                return []
            completions.extend(item)
            item = self._line.next(0)
        return self._accepted(completions)

    def close(self) -> None:
        """See :meth:`Client.close`."""
        self._line.hang_up()

    def _accepted(self, completions: list[Completion]) -> list[Completion]:
        fresh = []
        for completion in completions:
            asked = self._missing.get(completion.row)
            if asked is None:
                continue
            if asked.input_hash != completion.input_hash:
                _LOG.warning("The engine answered another row than was asked for; its connection is made anew.")
                self._line.hang_up()
                break
            del self._missing[completion.row]
            self._attempts.pop(completion.row, None)
            fresh.append(completion)
        if fresh:
            self._hangups = 0
        return fresh

    def _send(self, requests: Sequence[Request]) -> None:
        by_attempt: dict[int, list[Request]] = defaultdict(list)
        for request in requests:
            by_attempt[self._attempts[request.row] + 1].append(request)
        try:
            for attempt, group in by_attempt.items():
                self._line.send(frames.encode_requests(group, attempt=attempt))
        except ConnectionError:
            self._line.hang_up()  # half a frame may have gone out in time; the reader sees the end, and poll() mends it

    def _mend(self, error: Exception) -> None:
        self._line.hang_up()
        try:
            if not isinstance(error, ConnectionError):
                raise error
            self._count_hangup()
            self._line = self._connect()
        except SparkInferError as final:
            self._error = final  # for every later call too: nobody waits for an engine that was given up
            raise
        self._send(list(self._missing.values()))

    def _count_hangup(self) -> None:
        """Rows of a dead engine are asked for once more; rows of a living one were merely interrupted."""
        if _has_ended(self._line.engine.mark):
            _LOG.warning("The engine died; %d rows are asked for again.", len(self._missing))
            self._attempts.update(self._missing.keys())
            return
        self._hangups += 1
        if self._hangups >= _MAX_HANGUPS:
            raise EngineDied(
                f"The engine hung up {self._hangups} times without an answer; look at its log {self._line.engine.log}."
            )

    def _connect(self) -> _Line:
        deadline = time.monotonic() + self._spec.settings.start_timeout_s
        while True:
            engine = elect(self._place, self._spec, since=self._connected_at)
            try:
                line = _Line(engine, self._spec, self._task)
            except (ConnectionError, FileNotFoundError) as error:  # it ended between being found and being asked
                if time.monotonic() > deadline:
                    raise EngineTimeout(f"The engine takes no connection: {error}; its log is {engine.log}.") from error
                time.sleep(0.05)
                continue
            self._connected_at = time.monotonic()
            return line


class _Line:
    """One connection with its reading thread, which also judges the engine's signs of life."""

    def __init__(self, engine: RunningEngine, spec: EngineSpec, task: TaskSpec) -> None:
        self.engine = engine
        self._stall_timeout = spec.settings.stall_timeout_s
        self._inbox: queue.SimpleQueue[list[Completion] | Exception] = queue.SimpleQueue()
        self._put_back: list[Exception] = []
        self._channel = greet(engine, {"purpose": "task", "task": task.to_json(), "settings": spec.settings.to_dict()})
        try:
            # The kernel takes a connection for a process that is stopped; only its answer shows that it lives.
            self._take(self._next_frame())
        except BaseException:
            self._channel.close()
            raise
        threading.Thread(target=self._read, name="completions", daemon=True).start()

    def send(self, frame: bytes) -> None:
        """Send a frame; ConnectionError where the engine is gone."""
        self._channel.send(frame)

    def next(self, timeout: float) -> list[Completion] | Exception | None:
        """The next completions, or why there are no more, or None in time."""
        if self._put_back:
            return self._put_back.pop()
        try:
            return self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return None

    def put_back(self, error: Exception) -> None:
        """Keep an end for the next call."""
        self._put_back.append(error)

    def hang_up(self) -> None:
        """Close; the reading thread ends by it."""
        self._channel.shut()

    def _next_frame(self) -> bytes:
        """The engine says something every second; one that is silent for too long is ended."""
        quiet_s = 0.0  # counted in waits, not by the clock: a client that was itself stopped must not blame the engine
        while (frame := self._channel.receive(1.0)) is None:
            quiet_s += 1.0
            if quiet_s > self._stall_timeout:
                self._kill(f"no sign of life for {quiet_s:.0f} s")
        return frame

    def _read(self) -> None:
        try:
            while True:
                self._take(self._next_frame())
        except Exception as error:
            # Whatever it is: a thread that ended unnoticed would leave its task waiting for ever.
            self._inbox.put(error)
        finally:
            self._channel.close()

    def _take(self, frame: bytes) -> None:
        if frame[:1] == frames.COMPLETIONS:
            self._inbox.put(frames.decode_completions(frame))
            return
        message = frames.decode_control(frame)
        if "code" in message:
            raise _error_of(message)
        if message.get("busy_s", 0.0) > self._stall_timeout:
            self._kill(f"one step has taken {message['busy_s']:.0f} s")

    def _kill(self, why: str) -> NoReturn:
        _LOG.warning("The engine (pid %d) hangs, %s; it is ended and started again.", self.engine.mark.pid, why)
        self.engine.mark.kill()
        raise ConnectionError(why)


def greet(engine: RunningEngine, hello: dict[str, object]) -> Channel:
    """Connect and say hello.

    Raises:
        ConnectionError: it is gone.
    """
    channel = Channel.connect(engine.socket)
    try:
        channel.send(frames.encode_control({"protocol": frames.PROTOCOL, "token": engine.token, **hello}))
    except BaseException:
        channel.close()
        raise
    return channel


def _has_ended(mark: ProcessMark) -> bool:
    """Whether the process is gone; its sockets close a little before it is."""
    deadline = time.monotonic() + _DYING
    while mark.is_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _error_of(message: dict[str, object]) -> SparkInferError:
    cls = by_code(str(message["code"]))
    return (cls if cls is not SparkInferError else HostError)(str(message["message"]))
