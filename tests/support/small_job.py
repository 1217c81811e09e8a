"""A small job on the counting engine: sources of a few rows, a log of every request, a shared session."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkinfer import llm_udf, run
from sparkinfer.tracking.base import NullTracker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkinfer.job.result import RunResult


@dataclass
class Job:
    """One job's pieces in a folder of its own."""

    spark: SparkSession
    folder: Path
    options: str = ""
    prompt: str = "Say {text}"

    @property
    def into(self) -> str:
        return str(self.folder / "labels")

    @property
    def log(self) -> Path:
        return self.folder / "engine.log"

    def udf(self, **arguments: Any) -> Any:
        return llm_udf(model=f"fake:?log={self.log}{self.options}", prompt=self.prompt, **arguments)

    def run(self, source: Any, **arguments: Any) -> RunResult:
        given = {
            "into": self.into,
            "udf": None,
            "key": "id",
            "output": "answer",
            "buckets": 2,
            "tracker": NullTracker(),
            **arguments,
        }
        given["udf"] = given["udf"] or self.udf()
        return run(self.spark, source=source, **given)

    def frame(self, rows: list[tuple[Any, Any]]) -> DataFrame:
        return self.spark.createDataFrame(rows, "id bigint, text string")

    def requests(self) -> list[str]:
        """Prompts that the engine really ran, in order."""
        if not self.log.exists():
            return []
        events = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [event["prompt"] for event in events if event["event"] == "request"]

    def loads(self) -> int:
        return sum('"load"' in line for line in self.log.read_text().splitlines()) if self.log.exists() else 0

    def rows(self, path: str | None = None) -> list[Any]:
        """The result table's rows by id."""
        return self.spark.read.format("delta").load(path or self.into).orderBy("id").collect()
