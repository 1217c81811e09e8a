"""What the socket costs: one row there and back, and many rows at once, against the same engine in this process.

    python benchmarks/round_trip.py [--rows N]

Runs the fake engine, which answers at once, so that all that is measured is the way there and back: Arrow frames, the
Unix socket, threads, tokenising by bytes, memo and its file. Every figure is the median of five runs, after one to warm up.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sparkinfer import host
from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import EngineSpec, TaskSpec
from sparkinfer.host.client import Client
from sparkinfer.types import ModelRef, Request

REPEATS = 5
TEXT = "The screen is bright, the battery lasts two days, and the box came dented. " * 4


def rows(num_rows: int, *, salt: int) -> list[Request]:
    """Requests of about 300 characters, all different."""
    texts = [f"{salt} {number} {TEXT}" for number in range(num_rows)]
    return [
        Request(row=number, values=(text,), tags="s", input_hash=hashlib.sha256(text.encode()).hexdigest())
        for number, text in enumerate(texts)
    ]


def seconds(client: Client, requests: list[Request], *, window: int) -> float:
    """Wall seconds for all requests, ``window`` of them at a time."""
    began = time.perf_counter()
    for start in range(0, len(requests), window):
        part = requests[start : start + window]
        client.submit(part)
        missing = len(part)
        while missing:
            missing -= len(client.poll(1.0))
    return time.perf_counter() - began


def measure(name: str, client: Client, num_rows: int) -> None:
    """Print one line of figures for a client."""

    def median(run: Callable[[int], float]) -> float:
        run(0)
        return statistics.median(run(number) for number in range(1, REPEATS + 1))

    one = median(lambda n: seconds(client, rows(200, salt=hash((name, n, "one"))), window=1) / 200)
    again_rows = rows(200, salt=hash((name, "again")))
    seconds(client, again_rows, window=200)
    again = median(lambda _: seconds(client, again_rows, window=1) / 200)
    many = median(lambda n: num_rows / seconds(client, rows(num_rows, salt=hash((name, n, "many"))), window=1000))
    print(
        f"{name:8} one row {one * 1e6:7.0f} us   from the memo {again * 1e6:7.0f} us   {many:8.0f} rows/s, 1000 in flight"
    )


def main() -> None:
    """Measure both modes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5000, help="rows of the throughput figure")
    num_rows = parser.parse_args().rows
    model = ModelRef(uri="fake:", name="fake", version="1", fingerprint="fake", kind="fake", location="fake:")
    spec = EngineSpec(model=model, settings=EngineSettings(batch_timeout_ms=0))
    task = TaskSpec(prompt="Good or bad?\n{text}", names=("text",), config_hash="benchmark")
    with tempfile.TemporaryDirectory() as folder:
        block_manager = Path(folder) / "blockmgr-benchmark"
        block_manager.mkdir()
        os.environ["SPARK_LOCAL_DIRS"] = str(block_manager)
        for name, connect in (("inline", host.connect_inline), ("shared", host.connect)):
            client = connect(spec, task)
            measure(name, client, num_rows)
            client.close()


if __name__ == "__main__":
    main()
