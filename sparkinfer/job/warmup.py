"""Start the engine while the pending rows are still being staged: imports and weights take longer than that.

Only in local mode, and only where the job will certainly ask something: clusters start their engines with the first row, on
the executors that get one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from sparkinfer.udf.resolve import ResolvedUdf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)


def start_engine(
    spark: SparkSession, udf: ResolvedUdf, *, slots: int, mark: Callable[[], AbstractContextManager[None]]
) -> None:
    """Let one task connect to the engine, and so elect and start it; returns at once.

    Args:
        spark: the session; nothing happens where it is not local or has one slot only.
        udf: which engine.
        slots: tasks that run at once.
        mark: marks the Spark job as one of this run.
    """
    is_local = (spark.conf.get("spark.master", None) or "").startswith("local")
    if not is_local or slots < 2 or udf.engine_mode != "shared":
        return
    task = _connecting(udf.engine.to_json(), udf.task.to_json())

    def work() -> None:
        try:
            with mark():
                spark.range(0, 1, 1, 1).mapInArrow(task, "id bigint").collect()
        except Exception as error:  # the rows' own tasks meet it again and say it properly
            _LOG.info("The engine could not be started ahead: %s", type(error).__name__)

    threading.Thread(target=work, name="sparkinfer-warmup", daemon=True).start()


def _connecting(engine_json: str, task_json: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What the task runs: a connection, no request."""

    def connect(batches: Iterator[Any]) -> Iterator[Any]:
        from sparkinfer import host
        from sparkinfer.config.specs import EngineSpec, TaskSpec
        from sparkinfer.udf.devices import with_task_gpus

        engine = with_task_gpus(EngineSpec.from_json(engine_json))
        host.connect(engine, TaskSpec.from_json(task_json)).close()
        yield from batches

    return connect
