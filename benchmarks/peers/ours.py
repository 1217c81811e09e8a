"""sparkinfer's engine alone: prompt ids in, ids out, no Spark, no socket, no memo."""

from __future__ import annotations

import cProfile
import os
import pstats
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import Ask, Outcome, Setting

#: Where a profiled function belongs: the first entry whose text stands in its file name or, for builtins, in its name.
KINDS = (
    ("attention", ("sparkinfer/engine/attention",)),
    (
        "matrix products",
        (
            "small_products",
            "_nn.linear",
            "torch.mm",
            "torch.addmm",
            "torch.matmul",
            "_VariableFunctionsClass' objects.mm",
            "addmm",
        ),
    ),
    ("norm, rotary and activation", ("sparkinfer/engine/fused",)),
    ("sampling", ("sparkinfer/engine/sampler", "sparkinfer/engine/noise", "argmax", "topk")),
    ("scheduling", ("sparkinfer/engine/",)),
)
REST = "Python and the rest"
COUNTED = (
    "steps",
    "batched",
    "batched_tokens",
    "cached_tokens",
    "preemptions",
    "kv_places",
    "kv_empty",
    "kv_contiguous",
    "kv_contiguous_empty",
)


class Peer:
    """The engine as ``create_engine`` makes it."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._next_id = 0

    def load(self) -> None:
        """Load the model and let the engine prove itself."""
        from sparkinfer.host.process import waiting_threads

        os.environ.update(waiting_threads())  # as the engine process has them, before torch is imported
        from sparkinfer.config.settings import EngineSettings
        from sparkinfer.config.specs import EngineSpec
        from sparkinfer.engine.create import create_engine
        from sparkinfer.model import resolve

        settings = EngineSettings(threads=self._setting.threads, max_model_len=self._setting.max_model_len, memo=False)
        spec = EngineSpec(model=resolve(self._setting.model), dtype="fp32", fallback=False, settings=settings)
        self._engine = create_engine(spec, Path(self._setting.folder))

    def run(self, asks: list[Ask], options: dict[str, Any]) -> Outcome:
        """All rows at once; the engine batches them."""
        from sparkinfer.engine.base import EngineRequest
        from sparkinfer.types import SamplingParams

        before, began, first = self._engine.stats(), time.perf_counter(), None
        start, self._next_id = self._next_id, self._next_id + len(asks)
        for number, ask in enumerate(asks, start):
            sampling = SamplingParams(max_tokens=ask.max_tokens, ignore_eos=True)
            self._engine.add(
                EngineRequest(request_id=number, prompt_ids=ask.prompt_ids, sampling=sampling, arrival=time.monotonic())
            )
        answers: list[list[int]] = [[] for _ in asks]
        while self._engine.has_work():
            for output in self._engine.step():
                if output.error is not None:
                    raise RuntimeError(output.error)
                answers[output.request_id - start] += output.token_ids
                if first is None and output.finish_reason is not None:
                    first = time.perf_counter() - began
        after = self._engine.stats()
        made = {name: after[name] - before[name] for name in COUNTED}
        facts = {**made, "batch": made["batched"] / made["steps"], "kv_mb": self._engine.info.kv_bytes / 2**20}
        return Outcome(answers=answers, first_row_s=first, facts=facts)

    def where(self, asks: list[Ask]) -> dict[str, float]:
        """Seconds by kind, own time of each function under cProfile (which adds some to Python's share)."""
        profile = cProfile.Profile()
        profile.runcall(self.run, asks, {})
        seconds = dict.fromkeys([kind for kind, _ in KINDS] + [REST], 0.0)
        for (file, _, name), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
            place = name if file == "~" else file
            seconds[next((kind for kind, texts in KINDS if any(text in place for text in texts)), REST)] += own
        return {kind: round(value, 3) for kind, value in seconds.items()}

    def close(self) -> None:
        """Give memory back."""
        self._engine.close()
