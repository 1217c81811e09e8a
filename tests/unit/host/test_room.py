"""Two models on one executor: both fit, or one is refused at once; an idle one leaves and its memory comes back."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sparkinfer.errors import InsufficientMemory
from sparkinfer.host import room
from sparkinfer.host.ledger import Ledger
from sparkinfer.host.lineage import own_mark
from sparkinfer.host.place import Place
from sparkinfer.host.running import metrics
from sparkinfer.model.memory import PROCESS_BYTES
from tests.support.engines import connect, drain, engine_pid, engine_pids, eventually, fake_spec, row
from tests.support.model_folders import write_model

MIB = 1024**2
BALLAST_MB = 120
#: Room for one engine with its ballast and Python itself, not for two.
BUDGET = 260 * MIB

#: An engine process's load with so much room; says how it went, and holds what it has until its input ends.
LOADING = """
import sys
from pathlib import Path
from sparkinfer.errors import InsufficientMemory
from sparkinfer.host import room
from sparkinfer.host.lineage import own_mark
from tests.support.engines import fake_spec
room.available = lambda: int(sys.argv[2])
spec = fake_spec(load_mb=sys.argv[3], load_ms=300)
print("here", flush=True)
sys.stdin.readline()
try:
    room.load_beside_others(spec, None, Path(sys.argv[1]), own_mark())
    print("loaded", flush=True)
except InsufficientMemory as error:
    print("refused:", error, flush=True)
sys.stdin.read()
"""


def pss(pid: int) -> int:
    """A process's share of memory in bytes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def test_a_gpus_weights_and_pool_are_not_asked_of_the_hosts_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    folder, spec = write_model(tmp_path / "model"), fake_spec()
    on_cpu = replace(spec, settings=replace(spec.settings, device="cpu", kv_memory=MIB))
    on_gpu = replace(spec, settings=replace(spec.settings, device="cuda", kv_memory=MIB))
    assert room.host_bytes(on_cpu, folder) == 36 * 4 + MIB + PROCESS_BYTES  # all as fp32
    assert room.host_bytes(on_gpu, folder) == PROCESS_BYTES


def test_a_changed_model_sends_the_idle_one_away_and_its_memory_comes_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = connect(fake_spec(load_mb=BALLAST_MB, answer="before"))
    before.submit([row(1)])
    drain(before, 1)
    pid = engine_pid(place)
    held = pss(pid)
    assert held >= BALLAST_MB * MIB
    before.close()
    eventually(lambda: metrics()[0]["clients"] == 0)

    monkeypatch.setattr(room, "available", lambda: BUDGET - sum(pss(pid) for pid in engine_pids(place.folder)))
    engine, _ = room.load_beside_others(
        fake_spec(load_mb=BALLAST_MB + 50, answer="after"), None, place.folder, own_mark()
    )
    print(f"the old engine held {held / MIB:.0f} MiB and holds {pss(pid) / MIB:.0f} MiB")
    assert engine_pids(place.folder) == []
    assert pss(pid) == 0
    assert Ledger(place.folder).others(own_mark().pid) == []
    engine.close()


def test_an_engine_with_clients_stays_and_the_other_model_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = connect(fake_spec(load_mb=BALLAST_MB))
    monkeypatch.setattr(room, "available", lambda: BUDGET - sum(pss(pid) for pid in engine_pids(place.folder)))
    with pytest.raises(InsufficientMemory, match="beside fake"):
        room.load_beside_others(fake_spec(load_mb=BALLAST_MB + 50, answer="other"), None, place.folder, own_mark())
    used.submit([row(1)])
    assert drain(used, 1)[1].ok
    assert [entry.pid for entry in Ledger(place.folder).others(own_mark().pid)] == [engine_pid(place)]
    used.close()


@pytest.mark.parametrize(("megabytes", "outcomes"), [(60, ["loaded", "loaded"]), (130, ["loaded", "refused"])])
def test_two_models_that_load_at_once_both_fit_or_one_is_refused(
    megabytes: int, outcomes: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", LOADING, str(tmp_path), str(200 * MIB), str(megabytes)]
    loads = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for load in loads:
            assert load.stdout is not None
            assert load.stdout.readline() == "here\n"
        for load in loads:
            assert load.stdin is not None
            load.stdin.write("\n")
            load.stdin.flush()
        said = [
            load.stdout.readline() for load in loads if load.stdout is not None
        ]  # neither waits for the other's end
    finally:
        for load in loads:
            load.communicate()
    assert sorted(line.partition(":")[0].strip() for line in said) == outcomes
    assert all("fake (130 MiB)" in line for line in said if line.startswith("refused"))
