from __future__ import annotations

import re
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkinfer.cli.checks import compute, reach, runtime
from sparkinfer.cli.checks.base import Level, size

GIB = 1024**3


def java(folder: Path, line: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{line}' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ('openjdk version "17.0.15" 2025-04-15', Level.OK),
        ('openjdk version "21" 2023-09-19', Level.OK),
        ('openjdk version "1.8.0_392"', Level.FAIL),
        ('openjdk version "11.0.2" 2019-01-15', Level.FAIL),
    ],
)
def test_an_old_java_fails_with_the_fix(
    line: str, level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, line)))
    check = runtime.check_java()
    assert check.level is level
    assert ("Java 17" in check.fix) is (level is Level.FAIL)


def test_a_missing_java_fails_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = runtime.check_java()
    assert check.level is Level.FAIL
    assert "JAVA_HOME" in check.fix


def test_a_delta_jar_is_found_under_its_ivy_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "getpwuid", lambda _uid: SimpleNamespace(pw_dir=str(tmp_path)))  # whom Java asks
    monkeypatch.setenv("HOME", str(tmp_path / "another"))
    package = "io.delta:delta-spark_4.2_2.13:4.4.0"
    assert runtime.delta_jar(package) is None
    jar = tmp_path / ".ivy2.5.2" / "jars" / "io.delta_delta-spark_4.2_2.13-4.4.0.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    assert runtime.delta_jar(package) == jar


@pytest.mark.parametrize(("available", "level"), [(1, Level.FAIL), (2, Level.WARN), (8, Level.OK)])
def test_memory_is_judged_by_what_the_engine_needs(available: int, level: Level) -> None:
    check = compute.check_memory(available * GIB, 16 * GIB, weights=GIB // 2)
    assert check.level is level
    assert re.search(r"spark\.executor\.memoryOverhead=\d+m", check.detail)
    assert bool(check.fix) is (level is not Level.OK)


def test_memory_of_an_unknown_model_is_no_failure() -> None:
    assert compute.check_memory(GIB, GIB, weights=None).level is Level.OK


def test_a_full_disk_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "NO_DISK", 2**62)
    check = reach.check_disk()
    assert check.level is Level.FAIL
    assert "TMPDIR" in check.fix


def test_a_long_temporary_folder_fails_the_socket_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setattr("tempfile.tempdir", "/tmp/" + "x" * 100)
    assert reach.check_socket().level is Level.FAIL


def test_a_tracking_server_that_is_down_is_a_warning() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        check = reach.check_tracking(f"http://user:hunter2@127.0.0.1:{taken.getsockname()[1]}")
    assert check.level is Level.WARN
    assert "hunter2" not in check.detail


@pytest.mark.parametrize(
    ("count", "text"), [(5, "5 B"), (2048, "2 KiB"), (3 * 1024**2, "3 MiB"), (1.5 * GIB, "1.5 GiB")]
)
def test_sizes_are_told_in_units_for_people(count: float, text: str) -> None:
    assert size(count) == text
