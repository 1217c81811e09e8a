"""How many rows Spark reads from files, from its own counters."""

from __future__ import annotations

from typing import Any


class Reads:
    """Rows that Spark has read from files since the last look."""

    def __init__(self, spark: Any) -> None:
        self._context = spark.sparkContext
        self._seen = -1
        self.since()

    def since(self) -> int:
        scala, gateway = self._context._jsc.sc(), self._context._gateway
        scala.listenerBus().waitUntilEmpty()
        nothing = gateway.new_array(gateway.jvm.double, 0), gateway.jvm.java.util.ArrayList()
        stages = scala.statusStore().stageList(None, False, False, *nothing)
        new = [stage for stage in map(stages.apply, range(stages.size())) if stage.stageId() > self._seen]
        self._seen = max([self._seen, *(stage.stageId() for stage in new)])
        return sum(stage.inputRecords() for stage in new)
