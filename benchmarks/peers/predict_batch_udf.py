"""pyspark's ``predict_batch_udf``: fixed batches of rows, padded on the left, each run until its longest answer ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.peers import Ask, Outcome, Setting
from benchmarks.peers.on_spark import frame, local_session, worker_model

if TYPE_CHECKING:
    import numpy as np


class Peer:
    """One slot with all threads; rows in the order of the table."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def load(self) -> None:
        """Start the session and let the worker load the model."""
        self._spark = local_session(self._setting, slots=1)
        self.run([Ask(text="Hello.", max_tokens=1, prompt_ids=[])], {"batch": 1})

    def run(self, asks: list[Ask], options: dict[str, Any]) -> Outcome:
        """Collect the UDF's column."""
        from pyspark.ml.functions import predict_batch_udf
        from pyspark.sql.types import DoubleType, StringType, StructField, StructType

        batch, setting = int(options["batch"]), self._setting
        kind = StructType([StructField("text", StringType()), StructField("at", DoubleType())])
        udf = predict_batch_udf(
            maker(setting.folder, setting.prompt, setting.threads), return_type=kind, batch_size=batch
        )
        began = time.time()
        rows = frame(self._spark, asks, partitions=1).withColumn("answer", udf("text", "max_tokens"))
        found = sorted(rows.select("number", "answer.text", "answer.at").collect(), key=lambda row: row.number)
        return Outcome(
            answers=[row.text for row in found],
            first_row_s=min(row.at for row in found) - began,
            facts={"batch": mean_batch([ask.max_tokens for ask in asks], batch)},
        )

    def where(self, asks: list[Ask]) -> dict[str, float]:
        """Not told."""
        return {}

    def close(self) -> None:
        """End Spark."""
        self._spark.stop()


def mean_batch(lengths: list[int], batch: int) -> float:
    """Rows still wanted a step, on average, where each batch runs as long as its longest row."""
    steps = sum(max(lengths[start : start + batch]) for start in range(0, len(lengths), batch))
    return sum(lengths) / steps


def maker(folder: str, prompt: str, threads: int) -> Callable[[], Callable[..., list[dict[str, Any]]]]:
    """What ``predict_batch_udf`` calls once a worker."""

    def make() -> Callable[..., list[dict[str, Any]]]:
        import torch

        tokenizer, model = worker_model(folder, threads)

        def predict(texts: np.ndarray, lengths: np.ndarray) -> list[dict[str, Any]]:
            chats = [[{"role": "user", "content": prompt.replace("{text}", text)}] for text in texts]
            ids = tokenizer.apply_chat_template(
                chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
            )
            with torch.inference_mode():
                out = model.generate(**ids, do_sample=False, max_new_tokens=int(max(lengths)))
            answers = out[:, ids["input_ids"].shape[1] :]
            own = [answer[: int(length)] for answer, length in zip(answers, lengths, strict=True)]
            return [{"text": tokenizer.decode(answer, skip_special_tokens=True), "at": time.time()} for answer in own]

        return predict

    return make
