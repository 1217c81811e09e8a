"""From requests to completions inside one process: memo, in-flight twins, text threads around the engine's thread.

Shared and inline mode run this same service; only who waits for the completions differs.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from sparkinfer.config.specs import TaskSpec
from sparkinfer.engine.base import Engine, TokenOutput
from sparkinfer.errors import PoisonRow, SparkInferError
from sparkinfer.host.conversion import may_be_kept, poison_message, prepare, read
from sparkinfer.host.engine_loop import EngineLoop
from sparkinfer.host.journal import DIGEST, Journal
from sparkinfer.host.memo import Memo
from sparkinfer.host.progress import ProgressFiles
from sparkinfer.host.restart import Trial
from sparkinfer.host.retry import Backoff
from sparkinfer.host.segments import Segments
from sparkinfer.host.work import Outlet, Session, Waiter, Work, config_key, is_repeatable, work_key
from sparkinfer.text.task import TextTask
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.types import Completion, Request

_Outputs = list[tuple[Work, TokenOutput]]


class Service:
    """One engine with its text threads, memo and clients; thread-safe.

    Args:
        engine: ready to run; the service closes it.
        tokenizer: the model's.
        memo: answers already given, or None to infer equal inputs again (benchmarks).
        backoff: how often rows whose failure may pass are tried again.
        journal: see :class:`Journal`; None in inline mode, where the engine's death is the worker's.
        trial: rows to run apart after a death.
        poisoned: digests of rows that are answered with POISON_ROW.
        log_name: where the engine's log is, for that message.
        progress: live counters.
        segments: where jobs want their finished rows put down.
        on_failure: called with the exception with which the engine's thread ended.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        memo: Memo | None,
        progress: ProgressFiles,
        on_failure: Callable[[Exception], None],
        backoff: Backoff,
        segments: Segments,
        journal: Journal | None = None,
        trial: Trial | None = None,
        poisoned: Collection[bytes] = (),
        log_name: str = "",
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._memo = memo
        self._progress = progress
        self._backoff = backoff
        self._segments = segments
        self._poisoned = frozenset(poisoned)
        self._log_name = log_name
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._works: dict[int, Work] = {}
        self._in_flight: dict[bytes, Work] = {}
        self._texts: dict[bytes, tuple[int, TextTask]] = {}
        self._sessions: set[Session] = set()
        self._ids = itertools.count(1)
        self._preparing_since: float | None = None
        self._counts = {"memo_hits": 0, "twins": 0, "rows": 0, "retries": 0}
        self._to_prepare: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._to_read: queue.SimpleQueue[_Outputs | None] = queue.SimpleQueue()
        self.loop = EngineLoop(
            engine, trial=trial or Trial(()), journal=journal, emit=self._to_read.put, fail=on_failure
        )

    def start(self) -> None:
        """Start the threads: one prepares prompts, one runs the engine, one reads its outputs, one puts them down."""
        self._segments.start()
        for name, work in (("prepare", self._prepare_all), ("read", self._read_all)):
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True).start()
        self.loop.start()

    def stop(self) -> None:
        """End the threads after what they do now; clients get nothing more."""
        self._to_prepare.put(None)
        self.loop.stop()
        self._to_read.put(None)
        self._segments.close()
        if self._memo is not None:
            self._memo.close()

    def open(self, task: TaskSpec, outlet: Outlet) -> Session:
        """A client begins.

        Raises:
            SparkInferError: the task cannot be run with this model.
        """
        config = config_key(task)
        with self._lock:
            if config not in self._texts:
                info = self._engine.info
                text = TextTask(task, self._tokenizer, info.max_model_len, info.vocab_size)
                self._texts[config] = (len(self._texts), text)
            number, text = self._texts[config]
            session = Session(task, text, number, config, outlet, self._progress.enter(task.progress_dir))
            self._sessions.add(session)
        self._segments.enter(task.segments_dir)
        self._remember(self._segments.of_others(task.segments_dir, task.config_hash), config)
        return session

    def submit(self, session: Session, requests: Sequence[Request], *, attempt: int = 1) -> None:
        """Take rows in; their completions come to the session's outlet."""
        known: list[Completion] = []
        with self._lock:
            if session not in self._sessions:
                return
            for request in requests:
                completion = self._place(session, request, attempt)
                if completion is not None:
                    known.append(completion)
        self._deliver(session, known)

    def close(self, session: Session) -> None:
        """A client is gone: what only it waited for is dropped."""
        with self._lock:
            if session in self._sessions:
                self._segments.leave(session.task.segments_dir)
            self._sessions.discard(session)
            for work in [w for w in self._works.values() if any(x.session is session for x in w.waiters)]:
                work.waiters = [x for x in work.waiters if x.session is not session]
                if not work.waiters:
                    self._forget(work)
                    self.loop.drop(work)
        self._progress.leave(session.task.progress_dir, self.gauges())

    def fail(self, error: SparkInferError) -> None:
        """Tell every client that nothing more will come."""
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.outlet.fail(error)

    @property
    def busy_since(self) -> float | None:
        """Monotonic seconds since when the step or the prompt that is worked on now has taken; None between them."""
        return min(filter(None, (self.loop.stepping_since, self._preparing_since)), default=None)

    def gauges(self) -> dict[str, float]:
        """What the engine does just now."""
        return {
            "waiting": self.loop.num_waiting,
            "running": self.loop.num_running,
            "blocks_free": self.loop.stats.get("blocks_free", 0),
        }

    def write_progress(self) -> None:
        """Leave the live counters where jobs asked for them; about once a second."""
        self._progress.write(self.gauges())

    def stats(self) -> dict[str, float]:
        """Counters since the load: rows, memo_hits, twins, retries, clients, step_s (seconds of all steps), and the engine's own (requests, steps, tokens ...)."""
        with self._lock:
            counts = {**self._counts, "clients": len(self._sessions), "in_flight": len(self._works)}
        return {**self.loop.stats, **self.gauges(), **counts}

    def _place(self, session: Session, request: Request, attempt: int) -> Completion | None:
        """The answer where it is known; else the row waits with its twin or as new work. Called with the lock held."""
        self._counts["rows"] += 1
        key = work_key(session.config, request.input_hash)
        is_shared = self._memo is not None and is_repeatable(session.task, request)
        if is_shared and (twin := self._in_flight.get(key)) is not None:
            twin.waiters.append(Waiter(session, request.row))
            self._counts["twins"] += 1
            return None
        if is_shared and self._memo is not None and (stored := self._memo.get(key)) is not None:
            self._counts["memo_hits"] += 1
            session.tally.memo_hits += 1
            return replace(stored, row=request.row)
        waiters = [Waiter(session, request.row)]
        work = Work(next(self._ids), key, session, request, attempt, is_shared, waiters)
        if key[:DIGEST] in self._poisoned:
            return self._stamped(work, work.failed(PoisonRow.code, poison_message(self._log_name)))
        self._works[work.request_id] = work
        if is_shared:
            self._in_flight[key] = work
        self._to_prepare.put(work)
        return None

    def _remember(self, completions: list[Completion], config: bytes) -> None:
        if self._memo is not None and completions:
            self._memo.put([(work_key(config, c.input_hash), c) for c in completions if may_be_kept(c)])

    def _guarded(self, work: Callable[[], None]) -> None:
        """A thread that ended unnoticed would leave its rows waiting for ever."""
        try:
            work()
        except Exception as error:
            self._on_failure(error)

    def _prepare_all(self) -> None:
        while (work := self._to_prepare.get()) is not None:
            if not work.waiters:
                continue
            self._preparing_since = time.monotonic()
            prepared = prepare(work)
            self._preparing_since = None
            if isinstance(prepared, Completion):
                self.loop.settle(work)
                self._complete([(work, prepared)])
                continue
            work.prompt = prepared
            work.stream = work.session.text.stream(prepared)
            with self._lock:
                if work.waiters:  # else its clients left meanwhile, and their drop went ahead of it
                    self.loop.add(work)

    def _read_all(self) -> None:
        while (outputs := self._to_read.get()) is not None:
            done = []
            for work, output in outputs:
                completion = None if work.is_done else read(work, output)
                if completion is None:
                    continue
                work.is_done = True
                if output.error is not None and self._try_again(work, completion):
                    continue
                if output.finish_reason is None:  # a stop string: the engine does not know that it is over
                    self.loop.drop(work)
                done.append((work, completion))
            self._complete(done)

    def _try_again(self, work: Work, failed: Completion) -> bool:
        """Queue a row once more whose failure may pass; whether that was done. Its tokens were spent all the same."""
        if not self._backoff.allows(failed.error_code or "", work.retries):
            return False
        with self._lock:
            if self._works.pop(work.request_id, None) is None:
                return False  # nobody wants it any longer
            work.begin_again(next(self._ids))
            self._works[work.request_id] = work
            self._counts["retries"] += 1
            work.session.tally.pay(failed.usage)
            self.loop.retry(work, pause_s=self._backoff.pause_s(work.key, work.retries))
        return True

    def _complete(self, done: list[tuple[Work, Completion]]) -> None:
        stamped = [(work, self._stamped(work, completion)) for work, completion in done]
        by_session: dict[Session, list[Completion]] = defaultdict(list)
        with self._lock:
            if self._memo is not None:
                self._memo.put([(w.key, c) for w, c in stamped if w.is_shared and may_be_kept(c)])
            for work, completion in stamped:
                self._forget(work)
                work.session.tally.pay(completion.usage)
                for waiter in work.waiters:
                    by_session[waiter.session].append(replace(completion, row=waiter.row))
        for session, completions in by_session.items():
            self._deliver(session, completions)

    def _forget(self, work: Work) -> None:
        self._works.pop(work.request_id, None)
        if self._in_flight.get(work.key) is work:
            del self._in_flight[work.key]

    def _stamped(self, work: Work, completion: Completion) -> Completion:
        now = time.monotonic()
        began = work.began or now
        return replace(
            completion,
            queue_ms=round((began - work.arrival) * 1000),
            latency_ms=round((now - work.arrival) * 1000),
            attempts=work.attempt,
            engine=self._engine.info.label,
            inferred_at=time.time(),
        )

    def _deliver(self, session: Session, completions: list[Completion]) -> None:
        if not completions:
            return
        num_failed = sum(not completion.ok for completion in completions)
        with self._lock:
            session.tally.rows_done += len(completions) - num_failed
            session.tally.rows_failed += num_failed
        self._segments.add(session.task.segments_dir, session.task.config_hash, completions)
        session.outlet.deliver(completions)
