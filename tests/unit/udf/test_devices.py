"""Spark's GPU addresses make the engine's device, and the worker's own environment stays as it is."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from sparkinfer import host
from sparkinfer.config.specs import EngineSpec
from sparkinfer.host.election import engine_key
from sparkinfer.host.place import here
from sparkinfer.udf.devices import with_task_gpus
from tests.support.engines import TASK, fake_spec


@dataclass
class Tasks:
    """Stands for pyspark in a worker: tells the GPUs of the task that runs now."""

    gpus: list[str] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resources = SimpleNamespace(
            resources=lambda: {"gpu": SimpleNamespace(addresses=self.gpus)} if self.gpus else {}
        )
        pyspark = SimpleNamespace(TaskContext=SimpleNamespace(get=lambda: resources))
        monkeypatch.setitem(sys.modules, "pyspark", pyspark)


def test_a_reused_workers_next_task_gets_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    tasks, spec, keys = Tasks(), fake_spec(), []
    tasks.install(monkeypatch)
    for address in ("GPU-a", "GPU-b", "GPU-a"):
        tasks.gpus = [address]
        engine = with_task_gpus(spec)
        assert engine.task_gpus == (address,)
        keys.append(engine_key(here(), EngineSpec.from_json(engine.to_json())))
    assert keys[0] == keys[2] != keys[1]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_inline_two_gpus_are_two_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    tasks, services = Tasks(), []
    tasks.install(monkeypatch)
    for address in ("0", "1", "0"):
        tasks.gpus = [address]
        client = host.connect_inline(with_task_gpus(fake_spec(answer="inline")), TASK)
        services.append(client._service)  # type: ignore[attr-defined]
        client.close()
    assert services[0] is services[2] is not services[1]


def test_outside_a_task_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    Tasks().install(monkeypatch)
    assert with_task_gpus(fake_spec()) == fake_spec()
