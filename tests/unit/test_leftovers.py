"""The fixture that watches over the tests must itself see what it is there for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import leftovers as module
from tests.support.engines import eventually
from tests.support.leftovers import engines, leftovers


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.1)


@pytest.mark.usefixtures("impatient")
def test_an_engine_without_its_executor_its_socket_and_its_folder_are_seen(tmp_path: Path) -> None:
    folder = tmp_path / "blockmgr-1" / "sparkinfer" / "abc"
    folder.mkdir(parents=True)
    socket = tmp_path / "s"
    socket.touch()
    (folder / "recipe.json").write_text(f'{{"socket": "{socket}"}}')
    sleeper = [sys.executable, "-c", "input()", "sparkinfer.host.main", str(folder)]
    process = subprocess.Popen(sleeper, stdin=subprocess.PIPE)
    try:
        eventually(
            lambda: process.pid in [engine.pid for engine in engines()]
        )  # a session of other tests may have its own
        assert leftovers() == []  # an idle engine of a living executor
        shutil.rmtree(tmp_path / "blockmgr-1")
        assert f"engine process {process.pid}" in leftovers()[0]
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert leftovers() == [f"socket {socket} without an engine"]
    socket.unlink()
    assert leftovers() == []
