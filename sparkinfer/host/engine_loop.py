"""The one thread that calls the engine: takes work in, steps, hands outputs on. It knows no text and no clients."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

from sparkinfer.engine.base import Engine, EngineRequest, TokenOutput
from sparkinfer.host.journal import Journal
from sparkinfer.host.restart import Trial
from sparkinfer.host.retry import RetryQueue
from sparkinfer.host.work import Work, noise_key

Emit = Callable[[list[tuple[Work, TokenOutput]]], None]
_Command = Callable[[], None]
#: Seconds after which the counters that other threads read are renewed while the engine is busy.
_STATS_AGE = 0.2
#: Seconds to wait for more rows when a step gave nothing because its batch is still being filled.
_FILLING = 0.001


class EngineLoop(threading.Thread):
    """Drives an engine until stopped.

    Args:
        engine: only this thread calls it.
        trial: which rows must run apart after a death.
        journal: where the running rows are put down before each step, or None.
        emit: takes each step's outputs; must not block.
        fail: takes the exception with which the engine ended.
    """

    def __init__(
        self, engine: Engine, *, trial: Trial, journal: Journal | None, emit: Emit, fail: Callable[[Exception], None]
    ) -> None:
        super().__init__(name="engine", daemon=True)
        self._engine = engine
        self._trial = trial
        self._journal = journal
        self._emit = emit
        self._fail = fail
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._waiting: dict[int, Work] = {}
        self._retrying = RetryQueue()
        self._inside: dict[int, Work] = {}
        self._journaled: list[int] = []
        self._finished = 0
        self._stopping = False
        self._stats_time = 0.0
        self.stepping_since: float | None = None
        self._step_s = 0.0
        self.stats: dict[str, float] = engine.stats()

    def add(self, work: Work) -> None:
        """Queue prepared work."""
        self._commands.put(lambda: self._waiting.update({work.request_id: work}))

    def retry(self, work: Work, *, pause_s: float) -> None:
        """Queue work once more, after a pause in which the engine goes on with other work."""
        self._commands.put(lambda: self._retrying.put(work, pause_s=pause_s))

    def drop(self, work: Work) -> None:
        """End work whose answer is complete (stop string) or unwanted (client gone)."""
        self._commands.put(lambda: self._drop(work))

    def settle(self, work: Work) -> None:
        """Work that ended without reaching the engine: no longer suspect."""
        self._commands.put(lambda: self._trial.settle(work.digest))

    def stop(self) -> None:
        """End after the step that runs now."""
        self._commands.put(lambda: setattr(self, "_stopping", True))

    @property
    def num_waiting(self) -> int:
        """Rows that are prepared and not being run, those between two attempts among them."""
        return max(0, len(self._waiting) + len(self._retrying) + len(self._inside) - len(self._journaled))

    @property
    def num_running(self) -> int:
        """Rows of the batch being run."""
        return len(self._journaled)

    def run(self) -> None:
        """The loop; ends by stop() or with the engine's own exception."""
        try:
            while not self._stopping:
                self._obey()
                self._admit()
                if self._engine.has_work():
                    self._step()
        except Exception as error:  # whatever the engine raises, its clients must be told
            self._fail(error)
        finally:
            self._engine.close()

    def _obey(self) -> None:
        is_idle = not self._engine.has_work() and not self._waiting
        if is_idle or time.monotonic() - self._stats_time > _STATS_AGE:
            # A copy: the engine itself is this thread's alone.
            self.stats = {**self._engine.stats(), "step_s": self._step_s}
            self._stats_time = time.monotonic()
        for command in self._next_commands(block=is_idle):
            command()
        self._waiting.update((work.request_id, work) for work in self._retrying.take_due())

    def _next_commands(self, *, block: bool) -> Iterator[_Command]:
        try:
            if block:
                yield self._commands.get(timeout=self._retrying.next_s())
            while True:
                yield self._commands.get_nowait()
        except queue.Empty:
            return

    def _admit(self) -> None:
        if not self._waiting:
            return
        allowed = self._trial.admit((w.digest for w in self._waiting.values()), is_idle=not self._engine.has_work())
        if allowed is None:
            entering = list(self._waiting.values())
        else:
            entering = [work for work in self._waiting.values() if work.digest in allowed]
        for work in entering:
            del self._waiting[work.request_id]
            self._inside[work.request_id] = work
            self._engine.add(_engine_request(work))

    def _step(self) -> None:
        self._note_running()
        self.stepping_since = began = time.monotonic()
        outputs = self._engine.step()
        self.stepping_since = None
        self._step_s += time.monotonic() - began
        if not outputs:
            self._wait_for_more()
            return
        self._emit([(work, output) for output in outputs if (work := self._inside.get(output.request_id)) is not None])
        for output in outputs:
            if output.finish_reason is not None:
                self._leave(output.request_id)

    def _note_running(self) -> None:
        running = [i for i in self._engine.running_ids() if i in self._inside]
        if running == self._journaled:
            return
        self._journaled = running
        now = time.monotonic()
        for request_id in running:
            work = self._inside[request_id]
            work.began = work.began or now
        if self._journal is not None:
            digests = [self._inside[i].digest for i in running]
            self._journal.write(digests, on_trial=self._trial.is_on, finished=self._finished)

    def _wait_for_more(self) -> None:
        try:
            self._commands.get(timeout=_FILLING)()
        except queue.Empty:
            return

    def _leave(self, request_id: int) -> None:
        work = self._inside.pop(request_id, None)
        if work is None:
            return
        self._finished += 1
        self._trial.settle(work.digest)
        if not self._inside:
            self._rest()

    def _rest(self) -> None:
        """Nothing runs: a death now has no suspects."""
        self._journaled = []
        if self._journal is not None:
            self._journal.write([], on_trial=False, finished=self._finished)

    def _drop(self, work: Work) -> None:
        if self._waiting.pop(work.request_id, None) is not None or self._retrying.drop(work.request_id):
            return
        if work.request_id in self._inside:
            self._engine.finish(work.request_id) if work.is_done else self._engine.abort(work.request_id)
            self._leave(work.request_id)


def _engine_request(work: Work) -> EngineRequest:
    prompt = work.prompt
    assert prompt is not None, "only prepared work reaches the engine: this is a bug"
    return EngineRequest(
        request_id=work.request_id,
        prompt_ids=prompt.ids,
        sampling=prompt.sampling,
        stop_ids=prompt.stop_ids,
        choices=prompt.choices,
        noise_key=noise_key(prompt.sampling, work.request.input_hash),
        task=work.session.number,
        priority=work.session.task.priority,
        arrival=work.arrival,
    )
