"""vLLM built for CPUs, in an environment of its own: its engine, its scheduler, its prefix cache."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.peers import Ask, Outcome, Setting


class Peer:
    """``LLM`` with prompt ids; at most ``batch`` rows in its hands at once."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._next_id = 0

    def load(self) -> None:
        """Load as ``vllm`` does by itself, with the threads of all peers."""
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{self._setting.threads - 1}")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        from vllm import LLM

        self._llm = LLM(
            model=self._setting.folder,
            dtype="float32",
            max_model_len=self._setting.max_model_len,
            enable_prefix_caching=True,
            seed=0,
        )

    def run(self, asks: list[Ask], options: dict[str, Any]) -> Outcome:
        """Its own loop: add rows while there is room, step, take what has ended."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine, batch = self._llm.llm_engine, int(options.get("batch", 256))
        waiting, answers = list(enumerate(asks, self._next_id))[::-1], {}
        start, self._next_id = self._next_id, self._next_id + len(asks)
        began, first, inside = time.perf_counter(), None, 0
        while waiting or inside:
            while waiting and inside < batch:
                number, ask = waiting.pop()
                params = SamplingParams(
                    temperature=0.0,
                    max_tokens=ask.max_tokens,
                    ignore_eos=True,
                    detokenize=False,
                    output_kind=RequestOutputKind.FINAL_ONLY,
                )
                engine.add_request(str(number), {"prompt_token_ids": ask.prompt_ids}, params)
                inside += 1
            for output in engine.step():
                if output.finished:
                    answers[int(output.request_id.split("-")[0]) - start] = list(output.outputs[0].token_ids)
                    inside -= 1
                    first = time.perf_counter() - began if first is None else first
        return Outcome(answers=[answers[number] for number in range(len(asks))], first_row_s=first)

    def where(self, asks: list[Ask]) -> dict[str, float]:
        """Not told."""
        return {}

    def close(self) -> None:
        """Its core process ends with this one."""
