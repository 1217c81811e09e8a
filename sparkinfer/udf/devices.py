"""The GPUs that Spark gave this task. No torch here: only addresses, which the engine's side makes sense of."""

from __future__ import annotations

import sys
from dataclasses import replace

from sparkinfer.config.specs import EngineSpec


def with_task_gpus(engine: EngineSpec) -> EngineSpec:
    """The spec with the running task's GPUs, where Spark schedules GPUs.

    Tasks with fractions of one GPU get the same address, and so the same engine. The worker itself is left as it is: its next
    task may be on another GPU.
    """
    return replace(engine, task_gpus=_addresses())


def _addresses() -> tuple[str, ...]:
    """GPU addresses of the running task; empty outside a task, in local mode, and on clusters without GPUs."""
    pyspark = sys.modules.get("pyspark")  # a worker has it; outside Spark it need not be loaded for this
    context = pyspark.TaskContext.get() if pyspark is not None else None
    resources = context.resources() if context is not None else {}
    return tuple(resources["gpu"].addresses) if "gpu" in resources else ()
