"""The engine in the worker process itself: one per process, model and device set, ending with the process."""

from __future__ import annotations

import os
import queue
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from sparkinfer.config.specs import EngineSpec, TaskSpec
from sparkinfer.errors import EngineDied, SparkInferError
from sparkinfer.host.election import engine_key
from sparkinfer.host.lineage import mark_of
from sparkinfer.host.loading import load_engine, local_folder
from sparkinfer.host.memo import Memo
from sparkinfer.host.place import Place, engine_folder
from sparkinfer.host.progress import ProgressFiles
from sparkinfer.host.retry import Backoff
from sparkinfer.host.segments import Segments
from sparkinfer.host.service import Service
from sparkinfer.types import Completion, Request

_TICK = 1.0

_services: dict[tuple[int, str], _InlineService] = {}
_lock = threading.Lock()


class InlineClient:
    """A client of this process's own engine; implements :class:`sparkinfer.host.client.Client`."""

    def __init__(self, place: Place, spec: EngineSpec, task: TaskSpec) -> None:
        self._inbox: queue.SimpleQueue[list[Completion] | SparkInferError] = queue.SimpleQueue()
        self._service = _service_of(place, spec)
        self._session = self._service.service.open(task, self)

    def submit(self, requests: Sequence[Request]) -> None:
        """See :meth:`Client.submit`."""
        if self._service.error is not None:
            raise self._service.error
        self._service.service.submit(self._session, requests)

    def poll(self, timeout: float) -> list[Completion]:
        """See :meth:`Client.poll`."""
        self._service.tick()
        try:
            item = self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return []
        if isinstance(item, SparkInferError):
            raise item
        return item

    def close(self) -> None:
        """See :meth:`Client.close`; the engine stays for the next client."""
        self._service.service.close(self._session)

    def deliver(self, completions: list[Completion]) -> None:
        """The service's side: take completions in."""
        self._inbox.put(completions)

    def fail(self, error: SparkInferError) -> None:
        """The service's side: nothing more will come."""
        self._inbox.put(error)


class _InlineService:
    """A loaded engine with its service, and the error it ended with."""

    def __init__(self, place: Place, spec: EngineSpec) -> None:
        self.error: SparkInferError | None = None
        engine, tokenizer = load_engine(spec, local_folder(spec))
        settings = spec.settings
        folder = engine_folder(place, engine_key(place, spec)).path
        _remove_leftovers(folder)
        spill = folder / f"memo-{os.getpid()}.sqlite"
        self._ticked = 0.0
        self.service = Service(
            engine,
            tokenizer,
            memo=Memo(spill, memory_bytes=settings.memo_bytes) if settings.memo else None,
            progress=ProgressFiles(f"inline-{os.getpid()}"),
            segments=Segments(f"inline-{secrets.token_hex(8)}", spec.model),
            backoff=Backoff(settings.retries, settings.retry_base_s),
            on_failure=self._fail,
        )
        self.service.start()

    def tick(self) -> None:
        """Called often; once a second the live counters are written."""
        if time.monotonic() - self._ticked > _TICK:
            self._ticked = time.monotonic()
            self.service.write_progress()

    def _fail(self, error: Exception) -> None:
        self.error = EngineDied(
            f"The inline engine raised {error!r}; restart the session, or use engine_mode='shared'."
        )
        self.service.fail(self.error)


def _remove_leftovers(folder: Path) -> None:
    """Memo files of workers that are gone."""
    for path in folder.glob("memo-*.sqlite*"):
        pid = path.name.removeprefix("memo-").partition(".")[0]
        if not pid.isdigit() or mark_of(int(pid)) is None:
            path.unlink(missing_ok=True)


def _service_of(place: Place, spec: EngineSpec) -> _InlineService:
    key = (os.getpid(), engine_key(place, spec))  # the pid: a forked child must not use its parent's threads
    with _lock:
        if key not in _services or _services[key].error is not None:
            _services[key] = _InlineService(place, spec)
        return _services[key]
