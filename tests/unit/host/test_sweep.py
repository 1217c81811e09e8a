"""Dead sockets go, living ones stay."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from sparkinfer.host.sweep import sweep


def bound(path: Path, *, age_s: float, listens: bool) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    if listens:
        made.listen(1)
    os.utime(path, (time.time() - age_s,) * 2)
    return made


def test_only_old_sockets_without_a_listener_go(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    here = Path()
    listening = bound(here / "living.s", age_s=60, listens=True)
    full = bound(here / "full.s", age_s=60, listens=True)
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for client in waiting:
        client.setblocking(False)
        client.connect_ex("full.s")
    bound(here / "dead.s", age_s=60, listens=False).close()
    bound(here / "young.s", age_s=0, listens=False).close()
    (here / "other").touch()
    assert sweep(here) == [here / "dead.s"]
    assert sorted(path.name for path in here.iterdir()) == ["full.s", "living.s", "other", "young.s"]
    for one in (listening, full, *waiting):
        one.close()


def test_a_folder_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    assert sweep(tmp_path / "none") == []
