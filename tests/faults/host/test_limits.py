"""An executor's local disk without space, and an engine at its limit of memory: rows or one clear sentence, never a hang."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkinfer.errors import DiskFull, HostError
from sparkinfer.host.place import Place, here
from tests.support.drivers import driver_environment
from tests.support.engines import connect, drain, engine_pid, engine_pids, events, eventually, fake_spec, row
from tests.support.limits import fill, memory_limit, small_disk


@pytest.fixture
def small_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """An executor whose local folder lies on a disk of its own."""
    disk = tmp_path / "disk"
    with small_disk(disk, size="2m"):
        block_manager = disk / "blockmgr-0000"
        block_manager.mkdir()
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(block_manager))
        monkeypatch.delenv("SPARK_LOG_DIR", raising=False)
        yield here()
        block_manager.rename(disk / "gone")  # engines see that and go
        eventually(lambda: not engine_pids(disk), seconds=10)


def test_a_local_disk_that_is_full_before_the_start_is_said_in_a_sentence(small_place: Place, tmp_path: Path) -> None:
    fill(tmp_path / "disk")
    with pytest.raises(DiskFull, match=r"No space left on device.*spark\.local\.dir"):
        connect(fake_spec())


def test_a_read_only_local_folder_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block_manager = tmp_path / "disk" / "blockmgr-0000"
    with small_disk(tmp_path / "disk", size="2m") as remount:
        block_manager.mkdir()
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(block_manager))
        remount("ro")
        with pytest.raises(HostError, match=r"Read-only file system.*spark\.local\.dir"):
            connect(fake_spec())


def test_a_local_disk_that_fills_while_the_engine_works_costs_no_row(
    small_place: Place, tmp_path: Path, log: Path
) -> None:
    client = connect(fake_spec(log=log))
    fill(tmp_path / "disk")
    client.submit([row(number) for number in range(300)])
    answers = drain(client, 300)
    assert all(answer.ok for answer in answers.values())
    assert (len(events(log, "load")), len(events(log, "request"))) == (1, 300)
    client.close()


def test_a_row_that_meets_the_limit_of_memory_fails_alone_by_its_code(place: Place, log: Path) -> None:
    client = connect(fake_spec(log=log, hog="greedy", hog_mb=8192))
    client.submit([row(100)])
    assert drain(client, 1)[100].ok  # Arrow reserves its gigabyte with the first row
    pid = engine_pid(place)
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + 1024**3,) * 2)
    client.submit([row(number, "greedy" if number == 3 else None) for number in range(8)])
    answers = drain(client, 8)
    assert {number: answer.error_code for number, answer in answers.items() if not answer.ok} == {3: "OUT_OF_MEMORY"}
    assert len(events(log, "load")) == 1
    client.close()


def test_a_row_for_which_the_kernel_kills_the_engine_is_quarantined_and_the_others_finish(tmp_path: Path) -> None:
    code = f"""
import json
import os
from tests.support.engines import connect, drain, executor_folder, fake_spec, row
import os
with executor_folder() as folder:
    os.environ["SPARK_LOCAL_DIRS"] = str(folder)
    client = connect(fake_spec(log={str(tmp_path / "fake.jsonl")!r}, hog="greedy"))
    client.submit([row(number, "greedy" if number == 3 else None) for number in range(8)])
    answers = drain(client, 8)
    client.close()
print(json.dumps({{number: answer.error_code for number, answer in answers.items()}}))
"""
    with memory_limit(400) as enter:
        done = subprocess.run(
            [sys.executable, "-c", code],
            preexec_fn=enter,
            capture_output=True,
            text=True,
            env=driver_environment(),
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {str(n): "POISON_ROW" if n == 3 else None for n in range(8)}
    assert len(events(tmp_path / "fake.jsonl", "load")) > 1
