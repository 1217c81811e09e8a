"""What people write today: a pandas UDF that calls ``generate`` for one row after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from benchmarks.peers import Ask, Outcome, Setting
from benchmarks.peers.on_spark import frame, local_session, worker_model

SCHEMA = "text string, at double"


class Peer:
    """One model a slot; slots share the threads."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def load(self) -> None:
        """Start the session and let every slot's worker load the model."""
        self._spark = local_session(self._setting, slots=2)
        slots = int(self._setting.options.get("slots", 2))
        self.run([Ask(text="Hello.", max_tokens=1, prompt_ids=[])] * slots, {"slots": slots})

    def run(self, asks: list[Ask], options: dict[str, Any]) -> Outcome:
        """Collect the UDF's column."""
        slots = int(options["slots"])
        udf = make_udf(self._setting.folder, self._setting.prompt, max(1, self._setting.threads // slots))
        began = time.time()
        rows = frame(self._spark, asks, partitions=slots).withColumn("answer", udf("text", "max_tokens"))
        found = sorted(rows.select("number", "answer.text", "answer.at").collect(), key=lambda row: row.number)
        return Outcome(
            answers=[row.text for row in found],
            first_row_s=min(row.at for row in found) - began,
            facts={"batch": slots},
        )

    def where(self, asks: list[Ask]) -> dict[str, float]:
        """Not told."""
        return {}

    def close(self) -> None:
        """End Spark."""
        self._spark.stop()


def make_udf(folder: str, prompt: str, threads: int) -> Any:
    """The UDF: texts and tokens out -> answers with the second they were ready."""
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def generate(parts: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.DataFrame]:
        import torch

        tokenizer, model = worker_model(folder, threads)
        for texts, lengths in parts:
            made = []
            for text, length in zip(texts, lengths, strict=True):
                chat = [{"role": "user", "content": prompt.replace("{text}", text)}]
                ids = tokenizer.apply_chat_template(
                    chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
                )
                with torch.inference_mode():
                    out = model.generate(**ids, do_sample=False, max_new_tokens=int(length))
                answer = tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
                made.append((answer, time.time()))
            yield pd.DataFrame(made, columns=["text", "at"])

    generate.__annotations__ = {"parts": Iterator[tuple[pd.Series, pd.Series]], "return": Iterator[pd.DataFrame]}
    return pandas_udf(generate, SCHEMA)
