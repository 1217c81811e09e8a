"""OpenVINO GenAI's continuous batching, in an environment of its own, over the model converted to fp32."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.peers import Ask, Outcome, Setting

CONVERTED = Path(__file__).parents[2] / ".bench-envs" / "openvino" / "model"


class Peer:
    """``ContinuousBatchingPipeline`` with prompt ids; at most ``batch`` rows in its hands at once."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def load(self) -> None:
        """Load the converted model with full precision and the threads of all peers."""
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = 2048
        properties = {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "INFERENCE_NUM_THREADS": self._setting.threads,
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(CONVERTED), scheduler, "CPU", properties)

    def run(self, asks: list[Ask], options: dict[str, Any]) -> Outcome:
        """Its own loop: add rows while there is room, step, take what has ended."""
        import numpy
        import openvino
        import openvino_genai

        batch, waiting = int(options.get("batch", 256)), list(enumerate(asks))[::-1]
        inside: dict[int, Any] = {}
        answers: dict[int, list[int]] = {}
        began, first = time.perf_counter(), None
        while waiting or inside:
            while waiting and len(inside) < batch:
                number, ask = waiting.pop()
                config = openvino_genai.GenerationConfig(
                    max_new_tokens=ask.max_tokens, ignore_eos=True, do_sample=False
                )
                config.apply_chat_template = False
                ids = openvino.Tensor(numpy.array([ask.prompt_ids], dtype=numpy.int64))
                inside[number] = self._pipeline.add_request(number, ids, config)
            self._pipeline.step()
            for number, handle in list(inside.items()):
                if handle.get_status() == openvino_genai.GenerationStatus.FINISHED:
                    answers[number] = list(handle.read_all()[0].generated_ids)
                    del inside[number]
                    first = time.perf_counter() - began if first is None else first
        return Outcome(answers=[answers[number] for number in range(len(asks))], first_row_s=first)

    def where(self, asks: list[Ask]) -> dict[str, float]:
        """Not told."""
        return {}

    def close(self) -> None:
        """Nothing outlives the process."""
