"""One holder a host, with and without file locks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from sparkinfer.errors import DownloadFailed
from sparkinfer.model import lock
from sparkinfer.model.lock import host_lock


@pytest.fixture(params=["flock", "no flock"])
def kind(request, monkeypatch) -> str:
    if request.param == "no flock":

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOLCK, "no locks here")

        monkeypatch.setattr(fcntl, "flock", refuse)
    return request.param


def test_threads_hold_it_one_after_the_other(tmp_path, kind) -> None:
    inside, most, done = [], [], []

    def work() -> None:
        with host_lock(tmp_path / "x.lock"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()
        done.append(1)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 5
    assert max(most) == 1


def test_a_holder_that_lives_is_waited_for_no_longer_than_asked(tmp_path, kind) -> None:
    with (
        host_lock(tmp_path / "x.lock"),
        pytest.raises(DownloadFailed, match="has held"),
        host_lock(tmp_path / "x.lock", timeout=0.2),
    ):
        pass


def test_it_is_free_again_after_an_exception(tmp_path, kind) -> None:
    with pytest.raises(KeyError), host_lock(tmp_path / "x.lock"):
        raise KeyError
    with host_lock(tmp_path / "x.lock", timeout=0.5):
        pass


def owner_file(tmp_path, **owner):
    path = tmp_path / "x.lock.owner"
    path.write_text(json.dumps(owner))
    return path


def test_a_dead_owner_on_this_host_never_blocks(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.EOPNOTSUPP, "")))
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    owner_file(tmp_path, pid=child.pid, start="1", host=lock.this_host())
    with host_lock(tmp_path / "x.lock", timeout=5):
        pass


def test_a_reused_pid_is_not_the_owner(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSYS, "")))
    owner_file(tmp_path, pid=os.getpid(), start="1", host=lock.this_host())
    with host_lock(tmp_path / "x.lock", timeout=5):
        pass


@pytest.mark.parametrize("content", ['{"pid": 1, "start": "1", "host": "elsewhere"}', "", "{half"])
def test_an_owner_that_cannot_be_looked_up_blocks_for_ten_minutes_of_silence(tmp_path, monkeypatch, content) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "")))
    path = tmp_path / "x.lock.owner"
    path.write_text(content)
    with pytest.raises(DownloadFailed), host_lock(tmp_path / "x.lock", timeout=0.2):
        pass
    old = time.time() - lock.STALE_AFTER_S - 1
    os.utime(path, (old, old))
    with host_lock(tmp_path / "x.lock", timeout=5):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert not path.exists()
