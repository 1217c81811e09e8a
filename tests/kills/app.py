"""A Spark application that runs jobs one after the other: orders come as JSON lines, events go out as JSON lines.

Started by :mod:`tests.kills.application`; several kills share one application where the kill lets it live.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparkinfer import llm_udf, run, session
from sparkinfer.sink.base import Commit, StagedRows
from sparkinfer.sink.delta_spark import DeltaSparkSink
from sparkinfer.tracking.base import NullTracker


def tell(event: str, **more: object) -> None:
    """One event, at once."""
    sys.stdout.write(json.dumps({"event": event, "time": time.time(), **more}) + "\n")
    sys.stdout.flush()


class ToldSink(DeltaSparkSink):
    """Says when a commit begins and ends, so that a kill can be aimed at it."""

    def append(self, staged: StagedRows, commit: Commit) -> None:
        with self._told(commit):
            super().append(staged, commit)

    def merge(
        self, staged: StagedRows, on: Sequence[str], commit: Commit, *, within: Sequence[int] | None = None
    ) -> None:
        with self._told(commit):
            super().merge(staged, on, commit, within=within)

    @contextmanager
    def _told(self, commit: Commit) -> Iterator[None]:
        tell("commit begins", bucket=commit.bucket)
        try:
            yield
        finally:
            tell("commit ends", bucket=commit.bucket)


def main(master: str, config: dict[str, str]) -> None:
    """Make the session, then work until the orders end."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the harness asks where a job stands that does not end
    spark = session("sparkinfer-kills", master=master, config=config)
    spark.sparkContext.setLogLevel("ERROR")
    tell("ready", application=spark.sparkContext.applicationId)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        udf = llm_udf(model=order["model"], prompt="Say {text}", max_tokens=order["max_tokens"], seed=order["seed"])
        try:
            result = run(
                spark,
                source=order["source"],
                into=ToldSink(spark, order["into"]),
                udf=udf,
                key="id",
                output="answer",
                buckets=order["buckets"],
                tracker=NullTracker(),
            )
        except Exception as error:
            tell("failed", error=f"{type(error).__name__}: {error}"[:2000])
        else:
            tell("done", result=result.to_dict())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
