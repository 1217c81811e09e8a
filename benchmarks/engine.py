"""The engine against ``model.generate`` row by row: tokens a second, the same rows, lengths, threads and dtype on both sides.

    python benchmarks/engine.py                        # 200 rows, mean 43 tokens out, then 4 tokens out; baseline on 20 of them
    python benchmarks/engine.py --baseline-rows 200    # the baseline on every row too: an hour on a slow machine
    python benchmarks/engine.py --rows 40 --baseline-rows 8 --only four

Prompts are real reviews behind one instruction of about 130 tokens. Each row has its own number of output tokens and nothing
ends it earlier, so both sides make the same tokens; they are compared, and where they part, how close the two best logits were.
The baseline runs on every n-th row and both sides are given as output tokens a second. Beside seconds of the clock stand CPU
seconds of all threads and their ratio: what is left to go by where others use the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from sparkinfer.host.process import waiting_threads

os.environ.update(waiting_threads())  # as the engine process has them, before torch is imported

import numpy as np
import psutil
import pyarrow.parquet as pq
import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel

from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.base import Engine, EngineRequest
from sparkinfer.engine.create import create_engine
from sparkinfer.model import fetch, load, resolve
from sparkinfer.types import SamplingParams

REVIEWS = Path(__file__).parents[1] / "examples" / "data" / "reviews.parquet"
INSTRUCTION = """You read reviews that customers of a large online shop wrote about food they had bought there, and you judge each of them.
Say first whether the customer would buy the product again, then name in one sentence the reason that the review itself gives, and
at last say how sure you are of your judgement. Do not judge the product yourself, do not invent anything that the review does not
say, and do not repeat the review. A review that praises the product and complains about the delivery is good news for the product.
Answer in English, in plain sentences, without headings, lists or quotations, whatever the language of the review may be.
The review:
"""


def workload(folder: Path, first: int, rows: int, fixed: int | None) -> tuple[list[list[int]], list[int]]:
    """Prompt ids and output lengths: all ``fixed``, or 8 to 128 with a mean of about 43; reviews from ``first`` on."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = pq.read_table(REVIEWS, columns=["text"])["text"].to_pylist()[first : first + rows]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": INSTRUCTION + text}], add_generation_prompt=True, return_dict=False
        )
        for text in texts
    ]
    lengths = np.clip(8 + np.random.default_rng(43).exponential(38.0, len(prompts)), 8, 128).astype(int).tolist()
    return prompts, [fixed] * len(prompts) if fixed else lengths


@dataclass(frozen=True, slots=True)
class Span:
    """How long something took: by the clock, and CPU seconds of all threads of this process."""

    wall: float
    cpu: float


class Stopwatch:
    """Runs from its making."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> Span:
        """The span since then."""
        return Span(time.perf_counter() - self._wall, time.process_time() - self._cpu)


def run_engine(engine: Engine, prompts: list[list[int]], lengths: list[int]) -> tuple[list[list[int]], Span]:
    """Greedy tokens of all rows and what they took."""
    out: list[list[int]] = [[] for _ in prompts]
    watch = Stopwatch()
    for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        sampling = SamplingParams(max_tokens=length, ignore_eos=True)
        engine.add(EngineRequest(request_id=index, prompt_ids=prompt, sampling=sampling, arrival=time.monotonic()))
    while engine.has_work():
        for output in engine.step():
            assert output.error is None, output.error
            out[output.request_id] += output.token_ids
    return out, watch.read()


@torch.inference_mode()
def run_rows(model: PreTrainedModel, prompts: list[list[int]], lengths: list[int]) -> tuple[list[list[int]], Span]:
    """The same by ``generate``, one row after the other; no token ends a row there either."""
    out = []
    watch = Stopwatch()
    for prompt, length in zip(prompts, lengths, strict=True):
        ids = torch.tensor([prompt])
        settings = GenerationConfig(
            do_sample=False, max_new_tokens=length, pad_token_id=model.generation_config.pad_token_id
        )
        made = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        out.append(made[0, len(prompt) :].tolist())
    return out, watch.read()


@torch.inference_mode()
def ties(
    model: PreTrainedModel, prompts: list[list[int]], ours: list[list[int]], theirs: list[list[int]]
) -> list[float]:
    """For each row that differs, the gap between the oracle's two best logits where they part."""
    gaps = []
    for prompt, a, b in zip(prompts, ours, theirs, strict=True):
        if a != b:
            at = next(i for i in range(len(b)) if a[i] != b[i])
            best = model(torch.tensor([prompt + b[:at]])).logits[0, -1].topk(2).values
            gaps.append(float(best[0] - best[1]))
    return gaps


def rates(tokens: int, span: Span) -> dict[str, float]:
    """Seconds and output tokens a second."""
    return {"wall_s": round(span.wall, 1), "cpu_s": round(span.cpu, 1), "tokens_s": round(tokens / span.wall, 1)}


def ratios(tokens: int, span: Span, baseline_tokens: int, baseline: Span) -> dict[str, float]:
    """How many times the baseline's output tokens a second, and a CPU second."""
    wall = tokens / span.wall / (baseline_tokens / baseline.wall)
    cpu = tokens / span.cpu / (baseline_tokens / baseline.cpu)
    return {"wall": round(wall, 2), "cpu": round(cpu, 2)}


def memory(engine: Engine) -> dict[str, Any]:
    """What is resident with the engine alone after a few rows, and what is allowed: weights x 1.2 + KV pool + 700 MB.

    Pages of the pool are taken as its blocks are first written, and a few rows write next to none; so what is resident beyond
    the weights stands beside it.
    """
    rss = psutil.Process().memory_info().rss
    weights, pool = engine.info.weights_bytes, engine.info.kv_bytes
    allowed = weights * 1.2 + pool + 700 * 10**6
    sizes = {"rss": rss, "allowed": allowed, "weights": weights, "kv_pool": pool, "beyond_weights": rss - weights}
    return {f"{name}_mb": round(size / 10**6) for name, size in sizes.items()} | {"within": rss <= allowed}


def measure(engine: Engine, folder: Path, args: argparse.Namespace, fixed: int | None) -> dict[str, Any]:
    """One workload both ways; the warm run has other reviews, so that only the instruction is in the prefix cache."""
    prompts, lengths = workload(folder, 0, args.rows, fixed)
    ours, first = run_engine(engine, prompts, lengths)
    others, other_lengths = workload(folder, args.rows, args.rows, fixed)
    _, warm = run_engine(engine, others, other_lengths)
    model = load(
        folder, dtype="fp32", device="cpu", attention="sdpa"
    )  # gone with this workload: the next one counts memory
    step = max(1, args.rows // args.baseline_rows)
    part = list(range(0, args.rows, step))
    run_rows(model, prompts[:1], [4])
    theirs, rows_span = run_rows(model, [prompts[i] for i in part], [lengths[i] for i in part])
    part_total = sum(lengths[i] for i in part)
    gaps = ties(model, [prompts[i] for i in part], [ours[i] for i in part], theirs)
    total, warm_total = sum(lengths), sum(other_lengths)
    return {
        "out_tokens": "4" if fixed else "8..128",
        "mean_prompt": round(sum(map(len, prompts)) / len(prompts), 1),
        "mean_out": round(total / len(prompts), 1),
        "rows": len(prompts),
        "baseline_rows": len(part),
        "baseline": rates(part_total, rows_span),
        "first": rates(total, first),
        "warm": rates(warm_total, warm),
        "first_ratio": ratios(total, first, part_total, rows_span),
        "warm_ratio": ratios(warm_total, warm, part_total, rows_span),
        "rows_that_differ": len(gaps),
        "largest_gap_of_those": max(gaps, default=0.0),
    }


def main() -> None:
    """Measure and print one JSON object a workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sample")
    parser.add_argument("--rows", type=int, default=200, help="half of the reviews at most: the warm run takes others")
    parser.add_argument("--baseline-rows", type=int, default=20)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", choices=["mean43", "four"])
    args = parser.parse_args()
    ref = resolve(args.model)
    folder = fetch(ref)
    spec = EngineSpec(model=ref, dtype="fp32", settings=EngineSettings(threads=args.threads, max_model_len=4096))
    for name, fixed in (("mean43", None), ("four", 4)):
        if args.only not in (None, name):
            continue
        watch = Stopwatch()
        engine = create_engine(spec, folder)
        ready = watch.read()
        facts = {"engine": engine.info.label, "threads": args.threads, "load": os.getloadavg()[0]}
        print(json.dumps(facts | {"ready_s": round(ready.wall, 1), "ready_cpu_s": round(ready.cpu, 1)}))
        run_engine(engine, *workload(folder, 2 * args.rows - 8, 8, 4))
        print(json.dumps(memory(engine)))  # before the baseline's own copy of the weights comes in
        print(json.dumps(measure(engine, folder, args, fixed)))
        print(json.dumps({"stats": engine.stats()}))
        engine.close()


if __name__ == "__main__":
    main()
