"""Loading an engine beside others: what it needs is put down first, and idle engines of other models leave for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs

from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.base import Engine
from sparkinfer.errors import InsufficientMemory
from sparkinfer.host.ledger import Ledger, Reservation, beside
from sparkinfer.host.lineage import ProcessMark
from sparkinfer.host.loading import load_engine
from sparkinfer.host.running import dismiss, running_engines
from sparkinfer.model.devices import device_set
from sparkinfer.model.memory import PROCESS_BYTES, available, folder_weights_bytes
from sparkinfer.text.tokenizer import Tokenizer

_LOG = logging.getLogger(__name__)
#: Seconds that an engine that was asked to leave may take.
_LEAVING = 15.0

Loaded = tuple[Engine, Tokenizer]


def load_beside_others(spec: EngineSpec, folder: Path | None, place: Path, mark: ProcessMark) -> Loaded:
    """The engine and its tokenizer, with its memory put down in the executor's ledger.

    Args:
        spec: which engine.
        folder: the model's files.
        place: the executor's folder.
        mark: this process.

    Raises:
        InsufficientMemory: it does not fit though all idle engines have left; names the model and its neighbours.
    """
    ledger = Ledger(place)
    wanted = Reservation(model=spec.model.name, pid=mark.pid, started=mark.started, num_bytes=host_bytes(spec, folder))

    def load() -> Loaded:
        ledger.reserve(wanted, free_bytes=available())
        return load_engine(spec, folder)

    try:
        loaded = _load_or_make_room(load, place, mark)
    except InsufficientMemory as error:
        others = beside(ledger.others(mark.pid))
        ledger.release(mark.pid)
        if not others or others in error.message:
            raise
        raise InsufficientMemory(f"{error.message} It would run{others}.") from error
    info = loaded[0].info
    if info.device == "cpu":
        ledger.settle(replace(wanted, num_bytes=info.weights_bytes + info.kv_bytes + PROCESS_BYTES, is_loaded=True))
    else:
        ledger.settle(replace(wanted, is_loaded=True))
    return loaded


def host_bytes(spec: EngineSpec, folder: Path | None) -> int:
    """Host memory that an engine needs at least: its process, and on a CPU its weights and the KV pool that was asked for."""
    kv = spec.settings.kv_memory or 0
    if folder is None:
        options = parse_qs(spec.model.location.partition("?")[2])
        return int(options.get("load_mb", ["0"])[0]) * 1024**2 + kv
    if device_set(spec.settings.device).kind != "cpu":
        return PROCESS_BYTES  # weights and pool are in the device's memory
    dtype = "fp32" if spec.dtype == "auto" else spec.dtype
    weights = folder_weights_bytes(folder, dtype=dtype, at_most=spec.settings.weights_memory)
    return weights + kv + PROCESS_BYTES


def _load_or_make_room(load: Callable[[], Loaded], place: Path, mark: ProcessMark) -> Loaded:
    try:
        return load()
    except InsufficientMemory:
        if not _dismiss_idle(place, mark):
            raise
    return load()


def _dismiss_idle(place: Path, mark: ProcessMark) -> bool:
    """Ask every engine without clients to leave; whether one did, and is gone."""
    leaving = [engine for engine in running_engines(place) if engine.mark != mark and dismiss(engine)]
    deadline = time.monotonic() + _LEAVING
    for engine in leaving:
        _LOG.info("The idle engine %d leaves, to make room.", engine.mark.pid)
        while engine.mark.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
    return bool(leaving)
