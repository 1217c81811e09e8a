from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparkinfer.errors import InsufficientMemory
from sparkinfer.host.ledger import Ledger, Reservation
from sparkinfer.host.lineage import mark_of, own_mark
from sparkinfer.host.place import Place
from sparkinfer.host.running import metrics
from tests.support.engines import connect, drain, engine_pids, fake_spec, row

GIB = 1024**3


def reservation(model: str, *, gib: int, is_loaded: bool = False) -> Reservation:
    mark = own_mark()
    return Reservation(model=model, pid=mark.pid, started=mark.started, num_bytes=gib * GIB, is_loaded=is_loaded)


def test_two_models_that_load_at_once_do_not_count_the_same_room(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        mark = mark_of(other.pid)
        assert mark is not None
        first = Reservation(model="big", pid=mark.pid, started=mark.started, num_bytes=3 * GIB)
        ledger.reserve(first, free_bytes=4 * GIB)
        with pytest.raises(
            InsufficientMemory, match=r"small needs 2048 MiB and 1024 MiB is free beside big \(3072 MiB\)"
        ):
            ledger.reserve(reservation("small", gib=2), free_bytes=4 * GIB)
        ledger.settle(Reservation(model="big", pid=mark.pid, started=mark.started, num_bytes=2 * GIB, is_loaded=True))
        ledger.reserve(reservation("small", gib=2), free_bytes=2 * GIB)  # what is loaded is not free any more anyhow
        assert [str(entry) for entry in ledger.others(own_mark().pid)] == ["big (2048 MiB)"]
    assert ledger.others(own_mark().pid) == []  # its process is gone


def test_a_released_engine_counts_no_more(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.reserve(reservation("one", gib=1), free_bytes=GIB)
    ledger.release(own_mark().pid)
    assert ledger.others(0) == []


def test_a_model_beyond_the_memory_fails_at_once_and_names_its_neighbour(place: Place) -> None:
    small = connect(fake_spec(answer="small"))
    with pytest.raises(InsufficientMemory, match=r"needs 99999999 MiB .* beside fake"):
        connect(fake_spec(load_mb=99_999_999))
    small.submit([row(1)])
    assert drain(small, 1)[1].ok  # it has a client: nobody sends it away
    small.close()


def test_an_idle_engine_of_another_model_leaves_to_make_room(place: Place) -> None:
    connect(fake_spec(answer="idle")).close()
    assert len(engine_pids(place.folder)) == 1
    while metrics()[0]["clients"]:
        pass
    with pytest.raises(InsufficientMemory):
        connect(fake_spec(load_mb=99_999_999))
    assert engine_pids(place.folder) == []
