from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sparkinfer.errors import HostError, SocketPathTooLong
from sparkinfer.host.lineage import ProcessMark, mark_of, own_mark
from sparkinfer.host.place import MAX_SOCKET_PATH, EngineFolder, Place, engine_folder, here, log_folder
from sparkinfer.host.process import engine_environment
from sparkinfer.host.watch import active_watch
from sparkinfer.model.devices import cpu_threads


def test_two_executors_of_one_machine_have_two_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    for name in ("blockmgr-1", "blockmgr-2", "blockmgr-1"):
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / name},/elsewhere")
        places.append(here())
    assert places[0] == places[2]
    assert places[0].identity != places[1].identity


def test_the_folder_is_for_this_user_only(place: Place) -> None:
    assert place.folder.stat().st_mode & 0o777 == 0o700
    assert engine_folder(place, "k" * 64).path.stat().st_mode & 0o777 == 0o700


def test_outside_spark_this_process_is_the_executor_and_takes_its_folder_along() -> None:
    code = "import os; from sparkinfer.host.place import here; p = here(); print(p.folder, p.owner.pid == os.getpid(), p.folder.is_dir())"
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_DIRS"}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    folder, *facts = process.stdout.split()
    assert facts == ["True", "True"]
    assert not Path(folder).exists()


def test_a_long_socket_path_moves_to_the_temporary_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    path = EngineFolder(folder).socket()
    assert path.parent.parent == Path(tempfile.gettempdir())
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(os.fsencode(path)) <= MAX_SOCKET_PATH
    assert path == EngineFolder(folder).socket()


def test_a_temporary_folder_that_is_too_long_too_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("y" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(SocketPathTooLong, match="TMPDIR"):
        EngineFolder(long).socket()


def test_a_folder_that_is_a_link_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block_manager = tmp_path / "blockmgr-1"
    block_manager.mkdir()
    (block_manager / "sparkinfer").symlink_to(tmp_path)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(block_manager))
    with pytest.raises(HostError, match="belongs to someone else"):
        here()


def test_the_log_goes_where_the_cluster_manager_keeps_logs(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = engine_folder(place, "k" * 64)
    assert log_folder(place, folder) == folder.path
    monkeypatch.setenv("SPARK_LOG_DIR", str(tmp_path))
    assert log_folder(place, folder) == tmp_path
    monkeypatch.delenv("SPARK_LOG_DIR")
    (tmp_path / "stderr").touch()
    monkeypatch.chdir(tmp_path)  # as in a standalone executor's work folder
    assert log_folder(place, folder) == tmp_path


def test_a_reused_pid_is_not_the_same_process() -> None:
    assert own_mark().is_alive()
    assert not ProcessMark(os.getpid(), own_mark().started + 1).is_alive()
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    mark = mark_of(process.pid)
    process.wait()
    assert mark is not None
    assert not mark.is_alive()
    mark.kill()  # nothing to kill, nothing raised


def test_the_engine_gets_all_cores_and_none_of_sparks_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "s3cret")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv("AWS_REGION", "x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    environment = engine_environment(None, "")
    assert "s3cret" not in environment.values()
    assert environment["OMP_NUM_THREADS"] == str(cpu_threads())
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert 0 < int(environment["GOMP_SPINCOUNT"]) < 100_000, "none sleeps at once, and none spins for long"
    assert environment["AWS_REGION"] == "x"  # a model may have to be downloaded
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert engine_environment(None, "1")["CUDA_VISIBLE_DEVICES"] == "1"
    assert engine_environment(3, "")["OMP_NUM_THREADS"] == "3"


def test_the_engine_imports_what_this_process_imports_but_no_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/job/userFiles/delta.jar", "/job/userFiles/shipped.zip", *sys.path])
    path = engine_environment(None, "")["PYTHONPATH"].split(os.pathsep)
    assert Path(path[0], "sparkinfer", "host").is_dir()
    assert path[1] == "/job/userFiles/shipped.zip"
    assert not any(entry.endswith(".jar") for entry in path)


def test_doctor_can_say_which_watch_is_active(place: Place) -> None:
    assert str(place.block_manager) in active_watch()
    assert "idle time-out" in active_watch()
