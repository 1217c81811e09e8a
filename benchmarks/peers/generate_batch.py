"""transformers' continuous batching, what ``model.generate_batch`` runs; each row asks for its own number of tokens."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.peers import Ask, Outcome, Setting

PAGE = 32
"""Tokens of one of its KV pages."""


class Peer:
    """The manager that ``generate_batch`` makes: it takes a length a row where ``generate_batch`` takes one for all."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def load(self) -> None:
        """Load the model with the paged attention that works on a CPU."""
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(self._setting.threads)
        self._model = AutoModelForCausalLM.from_pretrained(
            self._setting.folder, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()

    def run(self, asks: list[Ask], options: dict[str, Any]) -> Outcome:
        """Start a manager, hand it all rows, wait for all of them."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        longest = max(ask.max_tokens for ask in asks)
        # -1 is no token's id: nothing ends a row before its number of tokens
        generation = GenerationConfig(do_sample=False, max_new_tokens=longest, eos_token_id=-1, pad_token_id=0)
        pages = sum(-(-(len(ask.prompt_ids) + ask.max_tokens) // PAGE) for ask in asks)
        batching = ContinuousBatchingConfig(
            page_size=PAGE, num_blocks=max(pages, 64), max_batch_tokens=int(options["max_batch_tokens"])
        )
        answers: dict[str, list[int]] = {}
        began, first = time.perf_counter(), None
        with self._model.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=batching, block=True, timeout=30, warmup=False
        ) as manager:
            for number, ask in enumerate(asks):
                manager.add_request(
                    ask.prompt_ids, request_id=str(number), max_new_tokens=ask.max_tokens, eos_token_id=-1
                )
            while len(answers) < len(asks):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    answers[result.request_id] = list(result.generated_tokens)
                    first = time.perf_counter() - began if first is None else first
                elif result is None and not manager.is_running():
                    raise RuntimeError("the manager has stopped before all rows were answered")
        return Outcome(answers=[answers[str(number)] for number in range(len(asks))], first_row_s=first)

    def where(self, asks: list[Ask]) -> dict[str, float]:
        """Not told."""
        return {}

    def close(self) -> None:
        """Nothing outlives the process."""
