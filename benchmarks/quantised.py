"""What integer weights cost and gain: fp32, int8 and int4 on the same real rows, in one run.

    python -m benchmarks.quantised [--rows 1000] [--dtypes int8,int4] [--threads 2]

Each row is asked for a label out of eight (examples before it, so that several occur), and for its first free token. Agreement
is with fp32; seconds are those of the label run, on engines that have been warmed up. int8 and int4 take turns with fp32 in slices of
the rows, so that a slow stretch of the machine meets all of them.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, field

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from sparkinfer.host.process import waiting_threads

os.environ.update(waiting_threads())  # as the engine process has them, before torch is imported

import pyarrow.parquet as pq

from benchmarks.workloads import DATA
from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import EngineSpec, TaskSpec
from sparkinfer.engine.base import Engine, EngineRequest
from sparkinfer.host.loading import load_engine
from sparkinfer.model import fetch, resolve
from sparkinfer.text.task import Prompt, TextTask
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.types import Request, SamplingParams

SLICE = 100
LABELS = ("coffee", "tea", "sweets", "snack", "pets", "drink", "cooking", "health")
PROMPT = """Reviews of food, and the shelf that each belongs to: coffee, tea, sweets, snack, pets, drink, cooking or health.
Review: My dog loves these and they arrived fast. Will order again.
Shelf: pets
Review: Stale chips, and half of the bag was crumbs. The picture shows something else.
Shelf: snack
Review: The best dark roast that I have had from a pod, and at a fair price.
Shelf: coffee
Review: A few drops in a glass of water and my children ask for more. Too sweet for me.
Shelf: drink
Review: I bake bread with it every Sunday; it rises well and has no strange taste.
Shelf: cooking
Review: {text}
Shelf:"""


@dataclass
class Seen:
    """What one dtype gave."""

    label: str
    megabytes: float
    labels: list[tuple[int, ...]] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    seconds: float = 0.0


def texts(rows: int) -> list[str]:
    """So many different reviews of the workloads' files."""
    found = [
        text
        for name in ("classify", "extract", "duplicates")
        for text in pq.read_table(DATA / f"{name}.parquet")["text"].to_pylist()
    ]
    return list(dict.fromkeys(found))[:rows]


def prompts(given: list[str], tokenizer: Tokenizer, *, choices: tuple[str, ...] | None) -> list[Prompt]:
    """As the engine process makes them."""
    task = TaskSpec(
        prompt=PROMPT,
        names=("text",),
        choices=choices,
        sampling=SamplingParams(max_tokens=1),
        on_overflow="truncate_middle",
    )
    made = TextTask(task, tokenizer, max_model_len=2048)
    found = [made.prepare(Request(row=i, values=(text,), tags="s", input_hash="")) for i, text in enumerate(given)]
    return [prompt for prompt in found if isinstance(prompt, Prompt)]


def ask(engine: Engine, asked: list[Prompt]) -> list[tuple[int, ...]]:
    """Tokens of each prompt."""
    found: list[tuple[int, ...]] = [()] * len(asked)
    for number, prompt in enumerate(asked):
        engine.add(
            EngineRequest(
                request_id=number,
                prompt_ids=prompt.ids,
                sampling=prompt.sampling,
                choices=prompt.choices,
                stop_ids=prompt.stop_ids,
                arrival=time.monotonic(),
            )
        )
    while engine.has_work():
        for output in engine.step():
            assert output.error is None, output.error
            found[output.request_id] += tuple(output.token_ids)
    return found


def main() -> None:
    """Print a line for each dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--dtypes", default="int8,int4")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    ref = resolve("sample")
    settings = EngineSettings(threads=asked.threads, batch_timeout_ms=0, max_model_len=2048)
    given, seen, engines = texts(asked.rows), {}, {}
    for dtype in ("fp32", *asked.dtypes.split(",")):
        spec = EngineSpec(model=ref, dtype=dtype, settings=settings)
        engines[dtype], tokenizer = load_engine(spec, fetch(ref))
        info = engines[dtype].info
        seen[dtype] = Seen(info.label, info.weights_bytes / 2**20)
        ask(engines[dtype], prompts(given[:8], tokenizer, choices=LABELS))
    closed, free = (prompts(given, tokenizer, choices=choices) for choices in (LABELS, None))
    for start in range(0, len(given), SLICE):
        for dtype, engine in engines.items():
            began = time.perf_counter()
            seen[dtype].labels += ask(engine, closed[start : start + SLICE])
            seen[dtype].seconds += time.perf_counter() - began
            seen[dtype].firsts += [tokens[0] if tokens else -1 for tokens in ask(engine, free[start : start + SLICE])]
        _report(seen)


def _report(seen: dict[str, Seen]) -> None:
    reference = seen["fp32"]
    rows = len(reference.labels)
    kinds = {label: reference.labels.count(label) / rows for label in sorted({*reference.labels})}
    print(f"\n{rows} rows; share of each label with fp32: {', '.join(f'{share:.0%}' for share in kinds.values())}")
    print(
        "| engine | weights, MiB | rows a second | times fp32 | labels as fp32 | first token as fp32 |\n|---|--:|--:|--:|--:|--:|"
    )
    for found in seen.values():
        labels = sum(a == b for a, b in zip(found.labels, reference.labels, strict=True)) / rows
        firsts = sum(a == b for a, b in zip(found.firsts, reference.firsts, strict=True)) / rows
        print(
            f"| {found.label} | {found.megabytes:.0f} | {rows / found.seconds:.1f} | {reference.seconds / found.seconds:.2f} "
            f"| {labels:.1%} | {firsts:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
