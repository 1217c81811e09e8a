"""What torch.compile makes of a model's steps: ``python -m sparkinfer.engine.compile_trial FOLDER``, started by ``compiled.py`` only.

Its standard input is the engine's spec; the last line of its output has the seconds of plain and of compiled steps, and those of compiling.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.attention.base import PackedBatch, pack
from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.create import build_engine, create_engine
from sparkinfer.engine.engine import PackedEngine
from sparkinfer.engine.plan import PlannedSequence
from sparkinfer.engine.runner import PackedRunner
from sparkinfer.engine.sequence import Sequence
from sparkinfer.model import load
from sparkinfer.model.trial import best_of
from sparkinfer.types import SamplingParams

#: Sequences, tokens that are there already and tokens of the step: a prefill and a full decode step.
_STEPS = ((4, 0, 64), (32, 64, 1))
_TOKENS = 2048  # context of the trial's engines


def main(folder: Path, spec: EngineSpec) -> None:
    """Measure the same steps plain and compiled."""
    length = min(spec.settings.max_model_len or _TOKENS, _TOKENS)
    settings = replace(spec.settings, compile_budget_s=0.0, max_model_len=length, kv_memory=None)
    spec = replace(spec, settings=settings, fallback=False)
    plain = create_engine(spec, folder)
    assert isinstance(plain, PackedEngine), "without the fallback there is no other: a bug"
    plain_s = _measured(plain)
    info = plain.info
    plain.close()
    device, threads = info.device, torch.get_num_threads()
    model = load(folder, dtype=info.dtype, device=device, trust_remote_code=spec.trust_remote_code)
    start = time.perf_counter()
    compiled = build_engine(model, spec, dtype=info.dtype, device=device, threads=threads, compiled=True)
    assert isinstance(compiled, PackedEngine), "without the fallback there is no other: a bug"
    compiled_s = _measured(compiled)
    compile_s = time.perf_counter() - start  # with the self-check and the steps, which are short beside it
    sys.stdout.write(json.dumps({"plain_s": plain_s, "compiled_s": compiled_s, "compile_s": compile_s}) + "\n")


def _measured(engine: PackedEngine) -> float:
    """Seconds of all steps, each run once before."""
    runner = engine.runner
    assert isinstance(runner, PackedRunner), "one process runs no ranks: a bug"
    batches = [batch_of(*step, block_size=runner.block_size, num_blocks=runner.num_blocks) for step in _STEPS]
    for batch in batches:
        runner.logits(batch)  # compiles what is to be compiled
    return sum(best_of(runner.logits, batch) for batch in batches)


def batch_of(rows: int, before: int, tokens: int, *, block_size: int, num_blocks: int) -> PackedBatch:
    """A step of so many sequences, or as many as the pool has blocks for, one after the other in it."""
    needed = -(-(before + tokens) // block_size)
    items, block = [], 0
    for number in range(min(rows, num_blocks // needed)):
        ids = [(7 * number + place) % 200 + 5 for place in range(before + tokens)]
        sequence = Sequence.from_request(EngineRequest(request_id=number, prompt_ids=ids, sampling=SamplingParams()))
        sequence.block_ids = list(range(block, block + needed))
        block += needed
        items.append(PlannedSequence(sequence, before, tokens, True))
    return pack(items, block_size)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    main(Path(sys.argv[1]), EngineSpec.from_json(sys.stdin.read()))
