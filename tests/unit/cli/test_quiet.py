from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sparkinfer import errors
from sparkinfer.cli.quiet import _stderr_into, quiet_session


def test_what_is_started_meanwhile_writes_into_the_file(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "spark.log"
    before = os.fstat(2).st_ino
    with _stderr_into(log):
        subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('chatter')"], check=True)
    assert log.read_text() == "chatter"
    assert os.fstat(2).st_ino == before


def test_the_terminal_is_given_back_when_the_start_fails(tmp_path: Path) -> None:
    before = os.fstat(2).st_ino
    with pytest.raises(ZeroDivisionError), _stderr_into(tmp_path / "spark.log"):
        raise ZeroDivisionError
    assert os.fstat(2).st_ino == before


def test_a_session_without_java_says_so_in_our_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    with (
        pytest.raises(errors.JavaNotFound),
        quiet_session("x", people=Console(file=io.StringIO()), log=tmp_path / "spark.log", config={}),
    ):
        pass
