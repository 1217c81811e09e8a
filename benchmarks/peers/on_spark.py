"""What the peers on Spark share: a local session, rows as a DataFrame of so many partitions, answers in row order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers import Ask, Setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def local_session(setting: Setting, *, slots: int, config: dict[str, Any] | None = None) -> SparkSession:
    """A session with so many slots and without Delta, the same for every peer."""
    from sparkinfer import session

    quiet = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": slots,
        "spark.default.parallelism": slots,
        "spark.local.dir": setting.scratch,
        "spark.sql.warehouse.dir": f"{setting.scratch}/warehouse",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    return session("benchmark", master=f"local[{slots}]", config={**quiet, **(config or {})})


def frame(spark: SparkSession, asks: list[Ask], *, partitions: int) -> DataFrame:
    """Columns number, text, max_tokens, in row order within each partition.

    The rows lie in the JVM: were they made by Python workers, a later stage could get one of those instead of a worker that
    holds the model already.
    """
    rows = [(number, ask.text, ask.max_tokens) for number, ask in enumerate(asks)]
    table = spark.createDataFrame(rows, "number int, text string, max_tokens int")
    return table.repartitionByRange(partitions, "number").sortWithinPartitions("number")


def worker_model(folder: str, threads: int) -> tuple[Any, Any]:
    """Tokenizer and model of this Python worker, loaded once; what people write into a UDF."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)  # Spark tells each worker to use one
    if not _LOADED:
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        model.generation_config.eos_token_id = None  # every row goes on to its own number of tokens
        _LOADED.extend([tokenizer, model])
    return _LOADED[0], _LOADED[1]


_LOADED: list[Any] = []
