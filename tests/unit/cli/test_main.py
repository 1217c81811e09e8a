from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkinfer.cli.checks import compute
from sparkinfer.cli.checks.base import Level
from sparkinfer.cli.exits import ExitCode, code_of
from sparkinfer.cli.main import app, main
from sparkinfer.errors import DeadlineReached, FailedRows, InvalidConfig, InvalidModelUri, ModelNotFound, SourceNotFound

COMMANDS = ("demo", "run", "status", "doctor")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == ExitCode.DONE
    said = capsys.readouterr().out
    assert [command for command in COMMANDS if f"\n  {command} " not in said] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == ExitCode.DONE
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [[], ["nosuch"], ["status"], ["doctor", "--nosuch"], ["demo", "--rows", "many"], ["run"]]
)
def test_wrong_use_is_exit_2_without_a_traceback(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == ExitCode.WRONG_USE
    assert "Traceback" not in capsys.readouterr().err


def test_a_wrong_job_file_is_one_line_with_its_code_key_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("source: a/b.parquet\ninto: out/x\nudf:\n  modell: sample\n")
    assert main(["run", str(job)]) == ExitCode.WRONG_USE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("[INVALID_CONFIG]")
    assert "modell" in said.err
    assert "line 4" in said.err


def test_debug_shows_the_traceback_wherever_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "none.yaml"), "--debug"]) == ExitCode.WRONG_USE
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidConfig, 2),
        (SourceNotFound, 2),
        (InvalidModelUri, 2),
        (ModelNotFound, 1),
        (FailedRows, 1),
        (DeadlineReached, 4),
    ],
)
def test_errors_map_to_exit_codes(error: type[InvalidConfig], code: int) -> None:
    assert code_of(error("x")) == code


def test_the_command_line_imports_nothing_heavy() -> None:
    look = (
        "import sys, sparkinfer.cli.main;"
        "print([m for m in ('torch', 'transformers', 'pyspark', 'mlflow', 'pandas', 'numba') if m in sys.modules])"
    )
    seen = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"


WAITING = """
import sys, time
import sparkinfer.cli.main as command_line
def wait() -> None:
    print("ready", flush=True)
    try:
        time.sleep(60)
    finally:
        if "gone" in sys.argv:
            raise ConnectionRefusedError(111, "the JVM went with the same signal")
command_line.app.command()(wait)
sys.exit(command_line.main(["wait"]))
"""


@pytest.mark.parametrize("jvm", ["there", "gone"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_exit_4_and_says_how_to_go_on(number: signal.Signals, jvm: str) -> None:
    waiting = subprocess.Popen(
        [sys.executable, "-c", WAITING, jvm],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "ready\n"
    time.sleep(0.1)
    waiting.send_signal(number)
    _, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == ExitCode.STOPPED
    assert "go on" in errors
    assert "Traceback" not in errors
    assert len(errors.splitlines()) == 1


def test_doctor_has_a_devices_line_where_torch_cannot_be_asked_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "IMPORT_TIMEOUT_S", 0.01)
    assert [(check.name, check.level) for check in compute.check_torch()] == [
        ("torch", Level.WARN),
        ("devices", Level.WARN),
    ]


def test_doctor_says_what_is_there_and_ends_with_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--model", "fake", "--json"])
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    report = json.loads(said.out)
    levels = {check["name"]: check["level"] for check in report["checks"]}
    wanted = {
        "python",
        "java",
        "spark",
        "delta",
        "torch",
        "devices",
        "model",
        "memory",
        "disk",
        "socket",
        "life-cycle watch",
        "tracking",
    }
    assert wanted <= set(levels)
    assert report["ok"] is (code == ExitCode.DONE)
    assert all(check["fix"] for check in report["checks"] if check["level"] != "ok")
    assert "python" in said.err


def test_doctor_fails_with_the_models_own_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "IMPORT_TIMEOUT_S", 0.01)  # torch is not what is looked at here
    assert main(["doctor", "--model", "/no/such/folder"]) == ExitCode.FAILED
    assert "[MODEL_NOT_FOUND]" in capsys.readouterr().out


def test_the_application_is_the_one_that_the_script_runs() -> None:
    assert app.info.name == "sparkinfer"
