"""Engine processes of the fake model for tests: an executor's folder of their own, and nothing left afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import EngineSpec, TaskSpec
from sparkinfer.host.client import Client, SharedClient
from sparkinfer.host.place import EngineFolder, Place, here
from sparkinfer.host.status import Status
from sparkinfer.types import Completion, ModelRef, Request
from tests.support.processes import pids_of

TASK = TaskSpec(prompt="Say {text}", names=("text",), config_hash="c0ffee")


def fake_spec(*, settings: EngineSettings | None = None, **options: object) -> EngineSpec:
    """An engine spec of the fake model with these options of its URI."""
    uri = "fake:?" + urlencode({name: str(value) for name, value in options.items()})
    fingerprint = hashlib.sha256(uri.encode()).hexdigest()
    ref = ModelRef(uri=uri, name="fake", version="1", fingerprint=fingerprint, kind="fake", location=uri)
    return EngineSpec(model=ref, settings=settings or EngineSettings(batch_timeout_ms=0, retry_base_s=0.01))


def row(number: int, text: str | None = None) -> Request:
    """A request whose text is its own number, or ``text``."""
    text = f"row {number}" if text is None else text
    return Request(row=number, values=(text,), tags="s", input_hash=hashlib.sha256(text.encode()).hexdigest())


def drain(client: Client, num_rows: int, *, seconds: float = 120.0) -> dict[int, Completion]:
    """Completions by row, once there are so many."""
    found: dict[int, Completion] = {}
    deadline = time.monotonic() + seconds
    while len(found) < num_rows:
        assert time.monotonic() < deadline, f"only {len(found)} of {num_rows} rows came back"
        for completion in client.poll(0.5):
            assert completion.row not in found, f"row {completion.row} came back twice"
            found[completion.row] = completion
    return found


def events(log: Path, kind: str) -> list[dict[str, object]]:
    """The fake engine's own account of loads or requests."""
    if not log.exists():
        return []
    return [event for line in log.read_text().splitlines() if (event := json.loads(line))["event"] == kind]


def eventually(condition: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Wait until something becomes true; fail where it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.02)


def engine_pids(folder: Path) -> list[int]:
    """Pids of engine processes that were started below a folder and still run."""
    return pids_of("sparkinfer.host.main", lambda command: any(part.startswith(str(folder)) for part in command))


def engine_pid(place: Place) -> int:
    """The pid of the one engine of a place."""
    (path,) = place.folder.glob("*/status.json")
    status = Status.load(path)
    assert status is not None
    return status.pid


@contextmanager
def executor_folder() -> Iterator[Path]:
    """A stand-in for Spark's block manager folder; what was started for it must end with it and leave nothing.

    Raises:
        AssertionError: an engine stayed (it is killed then), or its socket.
    """
    root = Path(tempfile.mkdtemp(prefix="sparkinfer-test-"))
    block_manager = root / "blockmgr-0000"
    block_manager.mkdir()
    try:
        yield block_manager
    finally:
        sockets = [EngineFolder(path).socket() for path in block_manager.glob("sparkinfer/*/")]
        shutil.rmtree(root, ignore_errors=True)  # engines see that and go
        deadline = time.monotonic() + 10
        while engine_pids(root) and time.monotonic() < deadline:
            time.sleep(0.02)
        stayed = engine_pids(root)
        for pid in stayed:
            os.kill(pid, signal.SIGKILL)
        assert not stayed, f"engines {stayed} outlived their executor's folder"
        assert not [socket for socket in sockets if socket.exists()], f"sockets were left: {sockets}"


def connect(spec: EngineSpec, task: TaskSpec = TASK) -> SharedClient:
    """A client in the present executor folder."""
    return SharedClient(here(), spec, task)
