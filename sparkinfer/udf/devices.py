"""The device that Spark gave this task, as the engine names it. No torch here: only addresses and the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from dataclasses import replace

from sparkinfer.config.settings import EngineSettings
from sparkinfer.errors import DeviceNotFound

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def with_task_device(settings: EngineSettings) -> EngineSettings:
    """The settings with this task's GPU where Spark schedules GPUs and nobody named a device.

    Tasks with fractions of one GPU get the same address, and so the same engine.

    Raises:
        DeviceNotFound: the address is none of this worker's visible devices.
    """
    addresses = task_addresses()
    if settings.device not in ("auto", "cuda") or not addresses:
        return settings
    return replace(settings, device=device_name(addresses, os.environ))


def task_addresses() -> Sequence[str]:
    """GPU addresses of the running task; empty outside a task, in local mode, and on clusters without GPUs."""
    pyspark = sys.modules.get("pyspark")  # a worker has it; outside Spark it need not be loaded for this
    context = pyspark.TaskContext.get() if pyspark is not None else None
    resources = context.resources() if context is not None else {}
    return list(resources["gpu"].addresses) if "gpu" in resources else []


def device_name(addresses: Sequence[str], environment: MutableMapping[str, str]) -> str:
    """The first address as ``cuda:N``.

    Spark's addresses are physical ids, places in ``CUDA_VISIBLE_DEVICES``, or UUIDs; torch counts visible devices. A UUID where
    nothing is set is made the one visible device, which the engine process inherits.

    Raises:
        DeviceNotFound: the address is none of the visible devices.
    """
    address = addresses[0]
    visible = [entry.strip() for entry in environment.get(_VISIBLE, "").split(",") if entry.strip()]
    if address in visible:
        return f"cuda:{visible.index(address)}"
    if not visible:
        if address.isdigit():
            return f"cuda:{address}"
        environment[_VISIBLE] = address
        return "cuda:0"
    if address.isdigit() and int(address) < len(visible):
        return f"cuda:{address}"
    raise DeviceNotFound(
        f"Spark gave this task GPU {address}, but {_VISIBLE} is {environment[_VISIBLE]}; "
        "let the discovery script print ids of that list, or places in it."
    )
