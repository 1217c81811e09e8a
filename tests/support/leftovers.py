"""What engines of this test run have left: processes whose executor is gone, and their sockets and folders."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

#: In the environment of everything that this run starts, engines included: other runs on the machine are not ours.
MARK = "SPARKINFER_TEST_RUN"
_PATIENCE_S = 20.0
#: Engines that were seen: their folder -> their socket.
_seen: dict[Path, Path] = {}


@dataclass(frozen=True)
class EngineProcess:
    """One engine process of this run."""

    pid: int
    folder: Path

    def is_orphan(self) -> bool:
        """Whether its executor is gone: the folder, or the JVM that was put down in it."""
        if not self.folder.is_dir():
            return True
        owner = _json(self.folder / "owner.json")
        return isinstance(owner, list) and not Path(f"/proc/{owner[0]}").exists()


def mark_this_run() -> None:
    """Called once, before anything is started; a driver that a test starts keeps its parent's mark."""
    os.environ.setdefault(MARK, f"{os.getpid()}-{time.time_ns()}")


def engines() -> list[EngineProcess]:
    """Every engine process of this run; their sockets are remembered."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            if b"sparkinfer.host.main" not in command or mark not in (process / "environ").read_bytes().split(b"\0"):
                continue
        except OSError:
            continue
        folder = Path(os.fsdecode(command[command.index(b"sparkinfer.host.main") + 1]))
        found.append(EngineProcess(int(process.name), folder))
        recipe = _json(folder / "recipe.json")
        if isinstance(recipe, dict):
            _seen[folder] = Path(recipe["socket"])
    return found


def leftovers() -> list[str]:
    """What is there and should not be, in words; empty where all is well. Waits, for an engine takes a moment to end."""
    deadline = time.monotonic() + _PATIENCE_S
    while (found := _look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _look() -> list[str]:
    alive = engines()
    found = [
        f"engine process {engine.pid} without its executor ({engine.folder})" for engine in alive if engine.is_orphan()
    ]
    folders = {engine.folder for engine in alive}
    for folder, socket in list(_seen.items()):
        if folder in folders:
            continue
        is_over = not folder.parent.parent.is_dir()  # Spark's folder: what an idle engine leaves in it goes with it
        found += [f"socket {socket} without an engine"] * (socket.exists() and is_over)
        found += [f"engine folder {folder} without an executor"] * (folder.exists() and is_over)
        if is_over and not socket.exists() and not folder.exists():
            del _seen[folder]
    return found


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
