"""The engine process's service inside the test's own process: real threads, a fake engine, no socket."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sparkinfer.config.specs import TaskSpec
from sparkinfer.engine.base import Engine
from sparkinfer.errors import SparkInferError
from sparkinfer.host.memo import Memo
from sparkinfer.host.progress import ProgressFiles
from sparkinfer.host.retry import Backoff
from sparkinfer.host.segments import Segments
from sparkinfer.host.service import Service
from sparkinfer.text.tokenizer import load_tokenizer
from sparkinfer.types import Completion, Request
from tests.support.engines import TASK, fake_spec


@dataclass
class Inbox:
    """A client's end: what the service delivers."""

    items: queue.SimpleQueue[Completion | SparkInferError] = field(default_factory=queue.SimpleQueue)

    def deliver(self, completions: list[Completion]) -> None:
        for completion in completions:
            self.items.put(completion)

    def fail(self, error: SparkInferError) -> None:
        self.items.put(error)

    def take(self, num_rows: int, *, seconds: float = 60.0) -> dict[int, Completion]:
        """So many completions, by row."""
        deadline = time.monotonic() + seconds
        found: dict[int, Completion] = {}
        while len(found) < num_rows:
            item = self.items.get(timeout=max(0.0, deadline - time.monotonic()))
            if isinstance(item, SparkInferError):
                raise item
            found[item.row] = item
        return found


@contextmanager
def service_of(
    engine: Engine, *, backoff: Backoff | None = None, memo: Memo | None = None, name: str = "test"
) -> Iterator[Service]:
    """A running service; what its engine raises is raised at the end."""
    failures: list[Exception] = []
    service = Service(
        engine,
        load_tokenizer(None),
        memo=memo,
        progress=ProgressFiles("test"),
        backoff=backoff or Backoff(3, 0.0),
        segments=Segments(name, fake_spec().model, flush_s=0.05),
        on_failure=failures.append,
    )
    service.start()
    yield service
    service.stop()
    service.loop.join(timeout=30)
    assert not failures, failures


def ask(service: Service, rows: Sequence[Request], *, task: TaskSpec = TASK) -> dict[int, Completion]:
    """The answers to rows, as one client gets them."""
    inbox = Inbox()
    session = service.open(task, inbox)
    service.submit(session, rows)
    found = inbox.take(len(rows))
    service.close(session)
    return found
