"""Three kills of the matrix that ``make kills`` runs by the hundred: an engine, an executor, a standalone worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kills.plan import kill_of
from tests.kills.trial import BUCKETS
from tests.support.drivers import ROOT, driver_environment

SEED = 1


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("number", "setting", "kind"),
    [(0, "local", "engine"), (11, "local-cluster", "executor"), (32, "standalone", "standalone worker")],
    ids=["engine", "executor", "standalone-worker"],
)
def test_a_kill_loses_and_doubles_nothing(number: int, setting: str, kind: str, tmp_path: Path) -> None:
    kill = kill_of(number, seed=SEED, buckets=BUCKETS)
    assert (kill.setting, kill.kind) == (setting, kind)
    command = [sys.executable, "-m", "tests.kills", "--kills", "1", "--seed", str(SEED), "--from", str(number)]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=driver_environment(),
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "paid again" in done.stdout, "it was not missed"
