"""Staging folders: who lives, what a dead run left, what stays after a failure."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from fsspec.implementations.local import LocalFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem

from sparkinfer.errors import CommitFailed, PermissionDenied
from sparkinfer.job import harvest as module
from sparkinfer.job import staging as staging_module
from sparkinfer.job.files import arrow_uri
from sparkinfer.job.harvest import JOB_FILE
from sparkinfer.job.staging import Staging, staging_of


def make(root: Path, run_id: str, config_hash: str = "c1") -> Staging:
    return Staging(str(root), run_id=run_id, config_hash=config_hash)


def leave_answers(folder: Path, bucket: int, *, whole: bool = True) -> Path:
    answers = folder / "answers" / f"bucket={bucket}"
    answers.mkdir(parents=True)
    (answers / "part-0.parquet").write_bytes(b"x")
    if whole:
        (answers / "_SUCCESS").touch()
    return answers


def kill(root: Path, run_id: str) -> None:
    """Make a run look as if its process had died: the pid of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    path = root / run_id / JOB_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": ended.pid, "started": 1.0}))


def leave_dead(root: Path) -> None:
    """A run whose process died behind the answers of bucket 3."""
    make(root, "dead")
    leave_answers(root / "dead", 3)
    kill(root, "dead")


def test_a_dead_runs_whole_answers_are_harvested_once(tmp_path: Path) -> None:
    make(tmp_path, "dead")
    leave_answers(tmp_path / "dead", 3)
    leave_answers(tmp_path / "dead", 4, whole=False)
    kill(tmp_path, "dead")
    heir, late = make(tmp_path, "heir"), make(tmp_path, "late")
    assert heir.harvest() == [f"{tmp_path}/heir/harvest/dead/answers/bucket=3"]
    assert late.harvest() == []
    assert not (tmp_path / "dead").exists()


def test_what_an_heir_had_harvested_is_harvested_again_when_it_dies(tmp_path: Path) -> None:
    make(tmp_path, "dead")
    leave_answers(tmp_path / "dead", 1)
    kill(tmp_path, "dead")
    make(tmp_path, "heir")
    kill(tmp_path, "heir")
    assert make(tmp_path, "last").harvest() == [f"{tmp_path}/last/harvest/heir/harvest/dead/answers/bucket=1"]


def test_a_dead_runs_segments_are_found_by_bucket_whole_or_not(tmp_path: Path) -> None:
    dead = make(tmp_path, "dead")
    folder = Path(dead.make_segments(3))
    (folder / "engine-00000.json").write_text("{}")
    (folder / ".engine-00001.json.new").write_text("{")
    dead.make_segments(4)  # nothing was finished there
    leave_answers(tmp_path / "dead", 3, whole=False)
    kill(tmp_path, "dead")
    heir = make(tmp_path, "heir")
    assert heir.harvest() == []
    assert heir.harvest_segments() == [f"{tmp_path}/heir/harvest/dead/segments/bucket=3"]
    assert heir.make_segments(3) == f"{tmp_path}/heir/segments/bucket=3"
    heir.drop_bucket(3)
    assert not (tmp_path / "heir/segments/bucket=3").exists()


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("/tmp/x", "/tmp/x"),
        ("file:///tmp/x", "/tmp/x"),
        ("dbfs:/Volumes/a/b", "/Volumes/a/b"),
        ("dbfs:/tmp/x", "/dbfs/tmp/x"),
        ("s3a://bucket/x", "s3://bucket/x"),
    ],
)
def test_paths_of_spark_become_those_of_arrow(path: str, uri: str) -> None:
    assert arrow_uri(path) == uri


def test_a_living_runs_folder_is_left_alone(tmp_path: Path) -> None:
    make(tmp_path, "alive")
    leave_answers(tmp_path / "alive", 1)
    assert make(tmp_path, "other").harvest() == []
    assert (tmp_path / "alive" / "answers").exists()


def test_a_living_run_stays_alive_when_the_clock_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "alive")
    leave_answers(tmp_path / "alive", 1)
    before, later = psutil.boot_time(), time.time() + 3600
    # Linux tells when it booted by today's clock: after a jump every process seems to have begun at another time of day
    monkeypatch.setattr("psutil._pslinux.BOOT_TIME", None, raising=False)
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: before + 3600)
    monkeypatch.setattr(module.time, "time", lambda: later)
    assert make(tmp_path, "other").harvest() == []
    assert (tmp_path / "alive" / "answers").exists()


def test_other_configurations_are_kept_for_their_own_next_run_and_then_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "other", "c2")
    leave_answers(tmp_path / "other", 1)
    kill(tmp_path, "other")
    assert make(tmp_path, "first").harvest() == []
    assert (tmp_path / "other").exists()
    later = time.time() + module.KEEP_OTHERS_S + 1
    monkeypatch.setattr(module.time, "time", lambda: later)
    make(tmp_path, "second")
    assert not (tmp_path / "other").exists()


def test_a_failed_run_says_where_its_answers_are_and_leaves_them_to_the_next(tmp_path: Path) -> None:
    with (
        pytest.raises(CommitFailed, match="is kept in") as failed,
        staging_of(str(tmp_path), run_id="one", config_hash="c1"),
    ):
        leave_answers(tmp_path / "one", 0)
        raise CommitFailed("The store is down.")
    assert failed.value.message.startswith("The store is down. ")
    with staging_of(str(tmp_path), run_id="two", config_hash="c1") as staging:
        assert len(staging.harvest()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_lets_go_of_its_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), staging_of(str(tmp_path), run_id="one", config_hash="c1"):
        raise KeyboardInterrupt
    assert not module.is_alive(json.loads((tmp_path / "one" / JOB_FILE).read_text()))


def test_a_run_on_another_host_is_dead_when_its_file_is_old() -> None:
    job = {"host": "elsewhere", "pid": 1, "started": 1.0, "state": "running"}
    assert module.is_alive({**job, "beat": time.time()})
    assert not module.is_alive({**job, "beat": time.time() - module.DEAD_AFTER_S - 1})


def test_a_committed_bucket_is_dropped_from_every_part(tmp_path: Path) -> None:
    staging = make(tmp_path, "run")
    for part in ("pending", "answers", "rows", "rows-3"):
        for bucket in (1, 11):
            (tmp_path / "run" / part / f"bucket={bucket}").mkdir(parents=True)
    staging.drop_bucket(1)
    left = sorted(str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").glob("*/bucket=*"))
    assert left == [f"{part}/bucket=11" for part in ("answers", "pending", "rows-3", "rows")]


def test_half_written_counters_are_skipped(tmp_path: Path) -> None:
    staging = make(tmp_path, "run")
    folder = Path(staging.progress_dir)
    (folder / "a.json").write_text('{"rows_done": 3}')
    (folder / "b.json").write_text('{"rows_')
    (folder / ".c.new").write_text('{"rows_done": 9}')
    assert staging.progress() == [{"rows_done": 3}]


def test_no_right_to_make_the_folder_is_said() -> None:
    with pytest.raises(PermissionDenied, match="staging folder"):
        make(Path("/proc/sparkinfer"), "run")


class LikeAnObjectStore(LocalFileSystem):
    """A local disk whose folders cannot be moved."""

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        if Path(path1).is_dir():
            raise FileNotFoundError(path1)
        super().mv(path1, path2, **kwargs)


@pytest.fixture
def object_store(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The staging root lies in such a store; how long claims waited."""
    store = PyFileSystem(FSSpecHandler(LikeAnObjectStore()))
    monkeypatch.setattr(staging_module, "file_system", lambda path: (store, path))
    waited: list[float] = []
    monkeypatch.setattr(module, "_pause", waited.append)
    return waited


def test_where_folders_cannot_be_moved_a_dead_runs_answers_are_read_where_they_lie(
    tmp_path: Path, object_store: list[float]
) -> None:
    leave_dead(tmp_path)
    with staging_of(str(tmp_path), run_id="heir", config_hash="c1") as heir:
        assert heir.harvest() == [f"{tmp_path}/dead/answers/bucket=3"]
        assert object_store == [module._CLAIM_PAUSE_S]
        heir.beat()
        assert make(tmp_path, "late").harvest() == []
    assert not (tmp_path / "dead").exists()


def test_what_was_claimed_where_it_lies_goes_to_the_next_run_when_its_heir_ends_badly(
    tmp_path: Path, object_store: list[float]
) -> None:
    leave_dead(tmp_path)
    for name in ("heir", "second heir"):
        with pytest.raises(KeyboardInterrupt), staging_of(str(tmp_path), run_id=name, config_hash="c1") as staging:
            assert staging.harvest() == [f"{tmp_path}/dead/answers/bucket=3"]
            raise KeyboardInterrupt


def test_of_two_runs_that_claim_at_once_one_gets_it(
    tmp_path: Path, object_store: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_dead(tmp_path)
    job = tmp_path / "dead" / JOB_FILE
    theirs = json.dumps({**json.loads(job.read_text()), "run_id": "faster", "pid": os.getpid()})
    monkeypatch.setattr(module, "_pause", lambda seconds: job.write_text(theirs))
    assert make(tmp_path, "heir").harvest() == []
    assert job.read_text() == theirs


def test_what_a_run_says_last_stands_though_its_beat_was_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beat writes from a thread of its own; one that began before the release must not say "running" behind it."""
    staging, writing, goes_on = make(tmp_path, "one"), threading.Event(), threading.Event()
    write = staging_module.write

    def slow(fs: Any, path: str, content: dict[str, Any]) -> None:
        if content["state"] == "running":
            writing.set()
            goes_on.wait(60)
        write(fs, path, content)

    monkeypatch.setattr(staging_module, "write", slow)
    beat = threading.Thread(target=staging.beat)
    beat.start()
    writing.wait(60)
    release = threading.Thread(target=staging.release)
    release.start()
    release.join(0.3)
    goes_on.set()
    for thread in (beat, release):
        thread.join(60)
    assert json.loads((tmp_path / "one" / JOB_FILE).read_text())["state"] == "released"


def test_a_failed_run_whose_folder_was_removed_does_not_say_that_answers_are_kept(tmp_path: Path) -> None:
    with (
        pytest.raises(CommitFailed, match="something removed it while the job ran") as failed,
        staging_of(str(tmp_path), run_id="one", config_hash="c1"),
    ):
        shutil.rmtree(tmp_path / "one")
        raise CommitFailed("The store is down.")
    assert "is kept" not in failed.value.message
