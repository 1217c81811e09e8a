"""The application that is watched: round after round of rows that no memo knows, then two jobs of different priority at once."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from sparkinfer import llm_udf, session


def tell(event: str, **more: object) -> None:
    """One event, at once."""
    sys.stdout.write(json.dumps({"event": event, "time": time.time(), **more}) + "\n")
    sys.stdout.flush()


def answer(spark: SparkSession, model: str, *, label: str, rows: int, partitions: int, priority: int = 0) -> None:
    """Answer so many short rows and count what came out, column by column, as a job that writes them would."""
    udf = llm_udf(model=model, prompt="Say {text}", max_tokens=16, priority=priority, fail_on_error=False)
    texts = spark.range(rows, numPartitions=partitions).select(sql.format_string(f"{label} %s", "id").alias("text"))
    found = texts.select(udf("text").alias("r")).agg(
        sql.count("r.result").alias("answers"), sql.count("r.errorCode").alias("failed")
    )
    counts = found.collect()[0]
    assert (counts["answers"], counts["failed"]) == (rows, 0), counts


def main(arguments: dict[str, Any]) -> None:
    """Rounds until both the rows and the time are there, then the two jobs."""
    spark = session("sparkinfer-soak", master="local[2,4]", config=arguments["config"])
    spark.sparkContext.setLogLevel("ERROR")
    model, rows = arguments["model"], arguments["rows_a_round"]
    tell("ready")
    began, done, number = time.monotonic(), 0, 0
    while done < arguments["rows"] or time.monotonic() - began < arguments["seconds"]:
        answer(spark, model, label=f"round {number}", rows=rows, partitions=8)
        done, number = done + rows, number + 1
        tell("round", rows=done)
    jobs = [
        threading.Thread(target=_timed, args=(spark, model, name, priority, count))
        for name, priority, count in (("patient", 0, 4 * rows), ("urgent", 5, rows))
    ]
    jobs[0].start()
    time.sleep(arguments["head_start"])
    jobs[1].start()
    for job in jobs:
        job.join()
    tell("done")
    spark.stop()


def _timed(spark: SparkSession, model: str, name: str, priority: int, rows: int) -> None:
    tell(f"{name} begins")
    answer(spark, model, label=name, rows=rows, partitions=1, priority=priority)  # a slot each
    tell(f"{name} ends", rows=rows)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
