from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sparkinfer.config.settings import EngineSettings
from sparkinfer.host.place import Place
from sparkinfer.host.progress import ProgressFiles
from tests.support.engines import TASK, connect, drain, engine_pid, events, eventually, fake_spec, row


def test_a_jobs_counters_stand_in_its_folder_after_its_last_client(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "progress"
    folder.mkdir()
    client = connect(fake_spec(fail="broken"), replace(TASK, progress_dir=str(folder)))
    client.submit([*(row(number) for number in range(20)), row(20, "row 1"), row(21, "broken")])
    drain(client, 22)
    client.submit([row(22, "row 2")])
    drain(client, 1)
    client.close()

    def counters() -> dict[str, float]:
        files = list(folder.glob("[!.]*.json"))
        return json.loads(files[0].read_text()) if len(files) == 1 else {}

    eventually(lambda: counters().get("rows_done") == 22)
    assert counters()["rows_failed"] == 1
    assert counters()["memo_hits"] == 1
    assert counters()["completion_tokens"] > 20
    assert {"waiting", "running", "blocks_free", "prompt_tokens", "cached_tokens"} <= counters().keys()


def test_a_folder_that_is_gone_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    progress = ProgressFiles("engine")
    progress.enter(str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        progress.write({"running": 1})
        progress.write({"running": 1})
    assert len(caplog.records) == 1


def test_clients_of_one_job_share_its_counters() -> None:
    progress = ProgressFiles("engine")
    assert progress.enter("a") is progress.enter("a")
    assert progress.enter("a") is not progress.enter("b")


def test_a_job_without_clients_is_not_written_any_more(tmp_path: Path) -> None:
    progress = ProgressFiles("engine")
    progress.enter(str(tmp_path)).rows_done = 3
    progress.leave(str(tmp_path), {"running": 0})
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["rows_done"] == 3
    file.unlink()
    progress.write({"running": 1})
    assert not list(tmp_path.iterdir())
    assert progress.enter(str(tmp_path)).rows_done == 3  # the job's next task goes on counting


def test_a_folder_that_hangs_holds_up_nobody_but_its_writer(tmp_path: Path) -> None:
    progress = ProgressFiles("engine")
    pipe = hang(tmp_path, "engine")
    progress.enter(str(tmp_path))
    writer = threading.Thread(target=progress.write, args=({"running": 1},), daemon=True)
    writer.start()
    eventually(lambda: progress._writing.locked())
    client = threading.Thread(target=progress.enter, args=("another job",), daemon=True)
    client.start()
    client.join(10)
    is_held_up = client.is_alive()
    free(pipe, writer)
    assert not is_held_up


def test_an_engine_whose_progress_folder_hangs_goes_on_giving_signs_of_life(
    place: Place, log: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "progress"
    folder.mkdir()
    spec = fake_spec(log=log, step_ms=250, settings=EngineSettings(batch_timeout_ms=0, stall_timeout_s=2))
    client = connect(spec, replace(TASK, progress_dir=str(folder)))
    client.submit([row(1)])
    drain(client, 1)
    eventually(lambda: list(folder.glob("[!.]*.json")))
    (file,) = folder.glob("[!.]*.json")
    pid = engine_pid(place)
    pipe = hang(folder, file.stem)
    written = file.stat().st_mtime_ns
    client.submit([row(number, "a long row " * number) for number in range(2, 40)])
    drain(client, 38)
    assert engine_pid(place) == pid
    assert len(events(log, "load")) == 1
    assert file.stat().st_mtime_ns == written
    client.close()
    os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))


def hang(folder: Path, name: str) -> Path:
    """Let whoever opens the progress file of this name wait, as on a mounted folder whose server is gone."""
    pipe = folder / f".{name}.new"
    os.mkfifo(pipe)
    return pipe


def free(pipe: Path, writer: threading.Thread) -> None:
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer.join()
    os.close(reader)
