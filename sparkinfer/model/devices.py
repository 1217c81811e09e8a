"""Which devices an executor's engine may use. Decided without torch, so that nothing here initialises CUDA."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkinfer.errors import DeviceNotFound
from sparkinfer.model import cgroup

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NVIDIA = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSet:
    """The devices of one engine.

    Attributes:
        kind: ``cpu`` or ``cuda``.
        ids: what names them to CUDA: indices or uuids (``GPU-...``, ``MIG-...``); empty on CPU.
    """

    kind: str
    ids: tuple[str, ...] = ()

    @property
    def visible(self) -> str:
        """``CUDA_VISIBLE_DEVICES`` for the engine process, which then counts them from cuda:0; empty hides every GPU."""
        return ",".join(self.ids)

    @property
    def key(self) -> str:
        """Part of the engine's key: two sets are two engines."""
        return self.kind + (":" + self.visible if self.ids else "")


CPU = DeviceSet(kind="cpu")


def device_set(
    device: str = "auto",
    *,
    task_addresses: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    host_gpus: Sequence[str] | None = None,
    count: int = 1,
) -> DeviceSet:
    """The devices for an engine started by a task.

    Args:
        device: ``auto`` (the task's GPUs, else the visible ones, else CPU) ``| cpu | cuda | cuda:N`` (N counts the task's or visible ones).
        task_addresses: ``TaskContext.resources()["gpu"].addresses``: indices, physical ids or uuids.
        environ: where ``CUDA_VISIBLE_DEVICES`` is read; None: this process's environment.
        host_gpus: the host's GPUs; None: looked up in /proc.
        count: how many GPUs the engine takes, where it takes any.

    Raises:
        DeviceNotFound: a GPU is asked for, or given by Spark, that is not there.
    """
    if device == "cpu":
        return CPU
    environ = os.environ if environ is None else environ
    visible = visible_gpus(environ, host_gpus)
    if task_addresses:
        ids = tuple(dict.fromkeys(_address(address, environ, visible) for address in task_addresses))
    else:
        ids = visible[:count] if device == "auto" else visible
    if device == "auto" and not ids:
        return CPU
    return _named(device, ids, count) if device != "auto" or count > 1 else DeviceSet(kind="cuda", ids=ids)


def _named(device: str, ids: tuple[str, ...], count: int) -> DeviceSet:
    kind, _, number = ("cuda" if device == "auto" else device).partition(":")
    if kind != "cuda" or (number and not number.isdigit()):
        raise DeviceNotFound(f"The device {device!r} is none of auto, cpu, cuda, cuda:N.")
    if not ids:
        raise DeviceNotFound(
            f"The device {device} was asked for, and this executor sees no GPU; set spark.executor.resource.gpu.amount, "
            f"check {_VISIBLE}, or use device auto."
        )
    index = int(number or 0)
    if index >= len(ids):
        raise DeviceNotFound(
            f"The device {device} was asked for, and this executor has {len(ids)} GPU(s): {', '.join(ids)}."
        )
    if index + count > len(ids):
        raise DeviceNotFound(
            f"The engine setting tensor_parallel={count} needs {count} GPUs from {device} on, and this executor has "
            f"{len(ids)}: {', '.join(ids)}. Set spark.task.resource.gpu.amount={count}, or a smaller tensor_parallel."
        )
    return DeviceSet(kind="cuda", ids=ids[index : index + count])


def visible_gpus(environ: Mapping[str, str] | None = None, host_gpus: Sequence[str] | None = None) -> tuple[str, ...]:
    """The GPUs that CUDA would show this process: those of the environment variable up to the first invalid one, else all.

    Args:
        environ: where ``CUDA_VISIBLE_DEVICES`` is read; None: this process's environment.
        host_gpus: the host's GPUs; None: looked up in /proc.
    """
    text = (os.environ if environ is None else environ).get(_VISIBLE)
    if text is None:
        return tuple(_host_gpus() if host_gpus is None else host_gpus)
    ids: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry or entry.startswith("-") or entry in ids:  # CUDA's own rule: what follows -1 is hidden
            break
        ids.append(entry)
    return tuple(ids)


def _address(address: str, environ: Mapping[str, str], visible: tuple[str, ...]) -> str:
    """A task's GPU address as CUDA names it.

    Where ``CUDA_VISIBLE_DEVICES`` is set, an address is a physical id that stands in it, else an index into it.
    """
    address = address.strip()
    if _VISIBLE not in environ:
        return address
    if address in visible:
        return address
    if address.startswith(("GPU-", "MIG-")):
        for entry in visible:  # CUDA takes a uuid's unique beginning too
            if entry.startswith(("GPU-", "MIG-")) and (entry.startswith(address) or address.startswith(entry)):
                return entry
    if address.isdigit() and int(address) < len(visible):
        return visible[int(address)]
    raise DeviceNotFound(
        f"Spark gave this task the GPU {address!r}, and {_VISIBLE}={environ[_VISIBLE]!r} does not show it; "
        f"unset {_VISIBLE} on the executors, or let the discovery script print what it shows."
    )


def _host_gpus() -> list[str]:
    """Indices of the NVIDIA GPUs whose driver is loaded on this host."""
    try:
        return [str(index) for index, _ in enumerate(sorted(_NVIDIA.iterdir()))]
    except OSError:
        return []


def cpu_threads(asked: int | None = None) -> int:
    """Threads that an engine on CPU uses: the setting, else the cores this process may run on, within the container's quota."""
    if asked is not None:
        return asked
    cores = len(os.sched_getaffinity(0))
    quota = _quota()
    return max(1, cores if quota is None else min(cores, quota))


def _quota() -> int | None:
    """CPUs that this process may use at once, rounded up: the least that its control groups allow; None without a limit."""
    return min((cpus for folder in cgroup.folders("cpu") if (cpus := _cpus_of(folder)) is not None), default=None)


def _cpus_of(folder: Path) -> int | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not (quota.isdigit() and period.isdigit()) or int(quota) == 0 or int(period) == 0:
        return None  # "max", -1, or a file that says nothing
    return -(-int(quota) // int(period))
