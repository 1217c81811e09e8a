from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from sparkinfer.host.place import Place
from sparkinfer.host.progress import ProgressFiles
from tests.support.engines import TASK, connect, drain, eventually, fake_spec, row


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
