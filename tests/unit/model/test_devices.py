"""Which devices an engine may use, by Spark's addresses and CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkinfer.errors import DeviceNotFound
from sparkinfer.model import cgroup
from sparkinfer.model.devices import CPU, cpu_threads, device_set

MIG = "MIG-4e5e1b9f-0f1c-5c2b-9b1f-0a1b2c3d4e5f"
GPU = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"


@pytest.mark.parametrize(
    ("addresses", "visible", "expected"),
    [
        (["0"], None, "0"),
        (["3"], None, "3"),
        (["1"], "4,5", "5"),  # an index into the list
        (["5"], "4,5", "5"),  # a physical id that stands in it
        (["0"], "1,0", "0"),  # stands in it, so it is no index
        ([GPU], None, GPU),
        ([GPU], f"{GPU},GPU-other", GPU),
        ([GPU], "GPU-8932f937", "GPU-8932f937"),  # CUDA takes a uuid's beginning
        (["0"], MIG, MIG),
        ([MIG], MIG, MIG),
        (["0", "1"], "6,7", "6,7"),
        (["1", "1"], None, "1"),
    ],
)
def test_a_tasks_address_becomes_what_cuda_calls_it(addresses, visible, expected) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = device_set(task_addresses=addresses, environ=environ, host_gpus=[])
    assert (found.kind, found.visible) == ("cuda", expected)


def test_an_address_that_cuda_cannot_see_is_an_error() -> None:
    with pytest.raises(DeviceNotFound, match="CUDA_VISIBLE_DEVICES"):
        device_set(task_addresses=["2"], environ={"CUDA_VISIBLE_DEVICES": "4,5"})


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_are_not_used(visible: str) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": visible}
    assert device_set(environ=environ, host_gpus=["0"]) == CPU
    with pytest.raises(DeviceNotFound, match="sees no GPU"):
        device_set("cuda", environ=environ, host_gpus=["0"])


def test_without_task_resources_the_first_visible_gpu_or_the_cpu_is_taken() -> None:
    assert device_set(environ={}, host_gpus=[]) == CPU
    assert device_set(environ={}, host_gpus=["0", "1"]).ids == ("0",)
    assert device_set(environ={"CUDA_VISIBLE_DEVICES": "3,1"}, host_gpus=["0"]).ids == ("3",)


def test_a_named_device_counts_among_the_tasks_own() -> None:
    assert device_set("cpu", task_addresses=["0"], environ={}) == CPU
    assert device_set("cuda:1", task_addresses=["4", "6"], environ={}).ids == ("6",)
    with pytest.raises(DeviceNotFound, match="has 1 GPU"):
        device_set("cuda:1", task_addresses=["4"], environ={})
    with pytest.raises(DeviceNotFound, match="none of auto"):
        device_set("tpu", environ={}, host_gpus=["0"])


def test_two_sets_have_two_keys_and_equal_ones_share() -> None:
    first, second = (device_set(task_addresses=[a], environ={}) for a in ("0", "1"))
    assert first.key != second.key
    assert first.key == device_set(task_addresses=["0"], environ={}).key
    assert CPU.key == "cpu"


def test_threads_are_the_setting_else_the_cores_that_this_process_may_run_on() -> None:
    assert cpu_threads(7) == 7
    assert 1 <= cpu_threads() <= len(os.sched_getaffinity(0))


def test_nothing_heavy_is_imported_to_decide() -> None:
    program = (
        "import sys; from sparkinfer.model import devices, memory, resolve; devices.device_set(); memory.available(); "
        "resolve('sample'); resolve('fake:?answer=x'); "
        "print(sorted({'torch','transformers','mlflow','pandas','pyarrow','huggingface_hub','pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "200000 100000", "a/cpu.max": "max 100000"}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 2),
        ("0::/a/b\n", {"cpu.max": "100000 100000", "a/b/cpu.max": "300000 100000"}, 1),
        ("3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, 3),
        ("3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_the_least_quota_of_the_control_groups_above_this_process_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], expected: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(cgroup, "_ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "_OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert cpu_threads() == (expected or 64)
    assert cpu_threads(7) == 7
