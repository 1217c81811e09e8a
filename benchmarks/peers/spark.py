"""sparkinfer through Spark: ``llm_udf`` on a column, one engine process for all slots."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.peers import Ask, Outcome, Setting
from benchmarks.peers.on_spark import frame, local_session


class Peer:
    """The public column expression, with the answer to equal rows off unless the options say ``reuse``."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._slots = int(setting.options["slots"])
        self._seen = (0.0, 0.0)  # steps and sequences in them when last looked

    def load(self) -> None:
        """Start the session and, by one short row, the engine."""
        from sparkinfer import llm_udf

        self.session = local_session(
            self._setting,
            slots=self._slots,
            config={
                "spark.sparkinfer.engine.threads": self._setting.threads,
                "spark.sparkinfer.engine.max_model_len": self._setting.max_model_len,
                "spark.sparkinfer.engine.memo": bool(self._setting.options.get("reuse", False)),
            },
        )
        self._udf = llm_udf(
            model=self._setting.model,
            prompt=self._setting.prompt,
            dtype="fp32",
            ignore_eos=True,
            fallback=False,
            fail_on_error=False,
        )
        self._engine_place = None
        self.run([Ask(text="Hello.", max_tokens=1, prompt_ids=[])] * self._slots, {})

    def run(self, asks: list[Ask], options: dict[str, Any]) -> Outcome:
        """Collect the column."""
        from pyspark.sql import functions as F

        rows = frame(self.session, asks, partitions=self._slots)
        answer = self._udf("text", params=F.struct("max_tokens"))
        began = time.time()
        found = (
            rows.withColumn("answer", answer)
            .select("number", "answer.*")
            .select("number", "result", "errorMessage", "cached_tokens", F.unix_micros("inferred_at").alias("at"))
            .collect()
        )
        found.sort(key=lambda row: row.number)
        broken = [row.errorMessage for row in found if row.errorMessage is not None]
        if broken:
            raise RuntimeError(f"{len(broken)} rows failed: {broken[0]}")
        facts = {"cached_tokens": float(sum(row.cached_tokens for row in found)), **self._batch()}
        return Outcome(
            answers=[row.result for row in found], first_row_s=min(row.at for row in found) / 1e6 - began, facts=facts
        )

    def _batch(self) -> dict[str, float]:
        """Mean sequences a step since the last look, asked of the engine without a job, which a run would pay for."""
        from sparkinfer.host.running import metrics

        if self._engine_place is None:
            self._engine_place = engine_place(self.session)
        (counters,) = metrics(self._engine_place)
        steps, batched = counters["steps"] - self._seen[0], counters["batched"] - self._seen[1]
        self._seen = (counters["steps"], counters["batched"])
        return {"steps": steps, "batch": batched / max(steps, 1.0)}

    def where(self, asks: list[Ask]) -> dict[str, float]:
        """See the engine alone."""
        return {}

    def close(self) -> None:
        """End Spark and with it the engine."""
        self.session.stop()


def engine_place(spark: Any) -> Any:
    """Where the workers' engine lies: on this machine, as the session is a local one."""
    from sparkinfer.host.place import Place

    def ask(parts: Any) -> Any:
        import pandas as pd

        from sparkinfer.host.place import here

        for _ in parts:
            yield pd.DataFrame({"folder": [str(here().folder)]})

    folder = spark.range(1).mapInPandas(ask, "folder string").collect()[0].folder
    return Place(identity="", folder=Path(folder), owner=None, block_manager=None)
