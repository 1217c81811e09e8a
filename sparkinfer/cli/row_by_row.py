"""What most people do without a library: ``model.generate``, one row after the other. The demo's measure.

A program of its own, so that nothing of the job is warm in it: it reads one JSON object from stdin (the engine's and the
task's recipe, the rows' values, the number of threads) and writes one to stdout. Prompts are the same ids that the engine
gets, and with choices the same choices are allowed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkinfer.host.process import waiting_threads

if TYPE_CHECKING:
    from sparkinfer.config.specs import EngineSpec, TaskSpec
    from sparkinfer.text.task import Prompt

TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class RowByRow:
    """What it measured.

    Attributes:
        rows: rows answered.
        seconds: of generating alone; loading is not counted.
        load_seconds: imports, weights, and one row to warm up.
        prompt_tokens: of these rows.
        completion_tokens: of these rows.
        answers: in row order.
    """

    rows: int
    seconds: float
    load_seconds: float
    prompt_tokens: int
    completion_tokens: int
    answers: tuple[str, ...]

    @property
    def rows_per_second(self) -> float:
        """Rows over the seconds of generating."""
        return self.rows / self.seconds


def measure(engine: EngineSpec, task: TaskSpec, texts: Sequence[str], *, threads: int) -> RowByRow:
    """Run the program in a fresh process.

    Args:
        engine: which model.
        task: what to ask; its prompt has one argument.
        texts: the argument's values.
        threads: CPU threads, as many as the engine has.

    Raises:
        RuntimeError: the program failed.
    """
    asked = {"engine": engine.to_json(), "task": task.to_json(), "texts": list(texts)}
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        **waiting_threads(),  # as the engine has them
        "TOKENIZERS_PARALLELISM": "false",
    }
    said = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment,
        check=False,
    )
    if said.returncode != 0:
        raise RuntimeError(f"row by row failed: {said.stderr.strip()[-500:]}")
    values = json.loads(said.stdout.splitlines()[-1])
    return RowByRow(**{**values, "answers": tuple(values["answers"])})


def _main() -> None:
    began = time.perf_counter()
    asked = json.load(sys.stdin)
    prompts, generate, decode = _load(asked)
    generate(prompts[0])  # what happens once only (memory, kernels) counts as loading, as it does for the warm engine
    loaded = time.perf_counter()
    outputs = [generate(prompt) for prompt in prompts]
    done = time.perf_counter()
    print(
        json.dumps(
            {
                "rows": len(prompts),
                "seconds": done - loaded,
                "load_seconds": loaded - began,
                "prompt_tokens": sum(len(prompt.ids) for prompt in prompts),
                "completion_tokens": sum(map(len, outputs)),
                "answers": [decode(ids).strip() for ids in outputs],
            }
        )
    )


def _load(asked: dict[str, Any]) -> tuple[list[Prompt], Callable[[Prompt], list[int]], Callable[[list[int]], str]]:
    from sparkinfer.config.specs import EngineSpec, TaskSpec
    from sparkinfer.model import fetch, load
    from sparkinfer.text.task import Prompt, TextTask
    from sparkinfer.text.tokenizer import load_tokenizer
    from sparkinfer.types import Request

    engine, task = EngineSpec.from_json(asked["engine"]), TaskSpec.from_json(asked["task"])
    folder = fetch(engine.model)
    trusted = engine.trust_remote_code
    tokenizer = load_tokenizer(folder, trust_remote_code=trusted)
    model = load(folder, dtype=engine.dtype, device="cpu", attention="sdpa", trust_remote_code=trusted)
    text_task = TextTask(task, tokenizer, model.config.max_position_embeddings)
    requests = [Request(row=i, values=(text,), tags="s", input_hash="") for i, text in enumerate(asked["texts"])]
    prepared = [text_task.prepare(request) for request in requests]
    prompts = [prompt for prompt in prepared if isinstance(prompt, Prompt)]
    return prompts, lambda prompt: _generate(model, prompt), tokenizer.decode


def _generate(model: Any, prompt: Prompt) -> list[int]:
    """The ids that ``generate`` gives for one prompt, without the stop id."""
    import torch

    ids = torch.tensor([prompt.ids])
    allowed = None if prompt.choices is None else _next_ids(prompt)
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=prompt.sampling.max_tokens,
            do_sample=False,
            eos_token_id=sorted(prompt.stop_ids),
            pad_token_id=min(prompt.stop_ids),
            prefix_allowed_tokens_fn=allowed,
        )
    new = [int(i) for i in output[0, len(prompt.ids) :]]
    return [i for i in new if i not in prompt.stop_ids]


def _next_ids(prompt: Prompt) -> Callable[[int, Any], list[int]]:
    """Which ids may follow so that only a choice comes out."""
    choices = [tuple(choice) for choice in prompt.choices or ()]
    start = len(prompt.ids)

    def allowed(_batch: int, ids: Any) -> list[int]:
        said = tuple(int(i) for i in ids[start:])
        begun = [choice for choice in choices if choice[: len(said)] == said]
        following = {choice[len(said)] for choice in begun if len(choice) > len(said)}
        ends = set(prompt.stop_ids) if said in choices or not following else set()
        return sorted(following | ends)

    return allowed


if __name__ == "__main__":
    _main()
