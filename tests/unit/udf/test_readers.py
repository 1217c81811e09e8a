"""What a worker remembers of its readers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sparkinfer.udf import readers
from sparkinfer.udf.window import PATIENCE_S


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(readers, "_constant", readers.OrderedDict())


def test_a_stage_whose_reader_went_on_needs_no_caution_later_and_others_do():
    readers.note_that_it_takes_every_row(7)
    assert readers.takes_every_row(7)
    assert not readers.takes_every_row(8)


def test_outside_a_task_nothing_is_remembered():
    assert readers.current_stage() is None
    readers.note_that_it_takes_every_row(None)
    assert not readers.takes_every_row(None)


def test_only_the_last_stages_are_kept():
    for stage in range(1000):
        readers.note_that_it_takes_every_row(stage)
    assert readers.takes_every_row(999)
    assert not readers.takes_every_row(0)
    assert len(readers._constant) < 100


def test_a_second_worker_gets_as_long_to_start_as_this_one_took():
    code = "import time; time.sleep(0.6)\nfrom sparkinfer.udf import readers; print(readers.patience_s())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert float(done.stdout) >= 2 * 0.6 > PATIENCE_S
