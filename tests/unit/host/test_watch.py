from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from sparkinfer.host.lineage import mark_of
from sparkinfer.host.place import Place
from sparkinfer.host.watch import End, LifeWatch, OwnerWatch
from tests.support.engines import engine_pids, eventually

#: Stands for the executor's JVM: a process called java with a Python worker below it that uses an engine.
WORKER = """
import sys
from sparkinfer.host import connect
from tests.support.engines import TASK, drain, fake_spec, row
client = connect(fake_spec(), TASK)
client.submit([row(1)])
drain(client, 1)
print("answered", flush=True)
sys.stdin.read()
"""


def test_both_ways_see_a_process_end(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = mark_of(process.pid)
    assert mark is not None
    by_pidfd, by_time = OwnerWatch(mark), OwnerWatch(mark)
    by_time._pidfd = None  # as on a kernel without pidfd
    assert {by_pidfd.kind, by_time.kind} == {"pidfd", "start time"}
    assert not by_pidfd.has_ended()
    assert not by_time.has_ended()
    process.kill()
    eventually(lambda: by_pidfd.has_ended() and by_time.has_ended())
    process.wait()


def test_the_reasons_to_end_are_named(tmp_path: Path) -> None:
    block_manager, folder = tmp_path / "blockmgr-1", tmp_path / "engine"
    block_manager.mkdir()
    folder.mkdir()
    watch = LifeWatch(block_manager=block_manager, folder=folder, idle_timeout_s=5)
    assert watch.end(idle_s=1) is None
    assert watch.end(idle_s=6) == End("no client for 5 s", executor_is_gone=False)
    block_manager.rmdir()
    assert watch.end(idle_s=0) == End(f"the folder {block_manager} is gone", executor_is_gone=True)


def test_the_engine_ends_with_the_jvm_though_the_jvm_was_killed(place: Place, tmp_path: Path) -> None:
    java = tmp_path / "java"
    shutil.copy("/bin/sh", java)  # a process is called by its file's name
    script = f"{sys.executable} -c '{WORKER}'; exit 0"
    jvm = subprocess.Popen(
        [java, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert jvm.stdout is not None
    assert jvm.stdout.readline().strip() == "answered"
    assert len(engine_pids(place.folder)) == 1
    jvm.kill()
    jvm.wait()
    eventually(lambda: not engine_pids(place.folder), seconds=10)
    assert not place.folder.exists()
    assert jvm.stdin is not None
    jvm.stdin.close()  # the worker ends
