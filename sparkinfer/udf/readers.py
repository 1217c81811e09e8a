"""What a worker process knows of the readers of its columns: how long one may take to hang up, and who takes every row.

A plan that evaluates the column twice (a filter on it below a limit) has a second worker between this one and the limit. It is
forked when this one is, and says nothing before it has imported what this one has; until then the reader's silence means
nothing. Its start is as long as this one's own, which is known.
"""

from __future__ import annotations

import os
import sys
import time
from collections import OrderedDict
from pathlib import Path

from sparkinfer.udf.window import PATIENCE_S

#: A second worker starts about as long as this one did, on a machine that is just then busy with both.
_START_FACTOR = 2.0
_MAX_START_S = 10.0
_MAX_STAGES = 64

_constant: OrderedDict[int, None] = OrderedDict()


def patience_s() -> float:
    """Seconds that a reader gets to hang up after its first rows."""
    return max(PATIENCE_S, _START_FACTOR * _START_S)


def current_stage() -> int | None:
    """Id of the stage that the running task belongs to; None outside a task."""
    pyspark = sys.modules.get("pyspark")  # a worker has it; outside Spark it need not be loaded for this
    context = pyspark.TaskContext.get() if pyspark is not None else None
    return None if context is None else int(context.stageId())


def takes_every_row(stage: int | None) -> bool:
    """Whether the readers of this stage are known to go on: then its further partitions need no caution."""
    return stage in _constant


def note_that_it_takes_every_row(stage: int | None) -> None:
    """A reader of this stage has gone on after its first rows; the stages seen last are remembered."""
    if stage is None:
        return
    _constant[stage] = None
    _constant.move_to_end(stage)
    while len(_constant) > _MAX_STAGES:
        _constant.popitem(last=False)


def _age_s() -> float:
    """Seconds since this process was forked; 0 where /proc does not say."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK"))


_START_S = min(_MAX_START_S, _age_s())  # this module is imported with a worker's first task
