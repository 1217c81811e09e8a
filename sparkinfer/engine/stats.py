"""What the engine counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sparkinfer.engine.plan import StepPlan
from sparkinfer.engine.scheduler import Scheduler


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine's start.

    Attributes:
        requests: accepted.
        finished: ended with an answer (those that their client ended included).
        failed: ended with an error.
        aborted: dropped because nobody wants the answer any longer.
        steps: batches run; failed_steps: those of them that raised.
        batched: sequences in all batches together.
        batched_tokens: tokens in all batches together.
        prompt_tokens: of requests that were begun.
        cached_tokens: of these, given by the prefix cache.
        completion_tokens: generated and part of an answer.
        guessed_tokens: run behind a decode because they might come next; guesses_right: those of them that did.
        kv_places: places of the KV blocks that the batch holds, summed over steps, a shared block once; kv_empty: those of them
            that hold nothing yet.
        kv_contiguous: places that one piece for each sequence, as long as it may become, would take, summed over steps;
            kv_contiguous_empty: those of them that would hold nothing yet.
    """

    requests: int = 0
    finished: int = 0
    failed: int = 0
    aborted: int = 0
    steps: int = 0
    failed_steps: int = 0
    batched: int = 0
    batched_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    guessed_tokens: int = 0
    guesses_right: int = 0
    kv_places: int = 0
    kv_empty: int = 0
    kv_contiguous: int = 0
    kv_contiguous_empty: int = 0

    def count_step(self, plan: StepPlan, *, block_size: int, max_model_len: int) -> None:
        """Count a batch that is about to run."""
        self.steps += 1
        self.batched += len(plan.items)
        self.batched_tokens += plan.num_tokens
        blocks: set[int] = set()
        for item in plan.items:
            sequence, held = item.sequence, item.start + item.num_tokens
            longest = min(sequence.num_prompt + sequence.request.sampling.max_tokens, max_model_len)
            blocks.update(sequence.block_ids)
            self.kv_empty += len(sequence.block_ids) * block_size - held
            self.kv_contiguous += longest
            self.kv_contiguous_empty += longest - held
        self.kv_places += len(blocks) * block_size

    def count_guesses(self, guessed: int, right: int) -> None:
        """Count one sequence's guesses of a step."""
        self.guessed_tokens += guessed
        self.guesses_right += right

    def snapshot(self, scheduler: Scheduler) -> dict[str, float]:
        """The counters with what is derived from them and the scheduler's present state.

        ``occupancy`` is the mean batch size over the largest possible; ``kv_used_tokens`` is what running sequences hold (a
        shared token counts once for each), ``kv_wasted_tokens`` are places in their blocks that hold nothing yet.
        """
        pool, running = scheduler.pool, scheduler.running
        places = sum(len(sequence.block_ids) for sequence in running) * pool.block_size
        used = sum(sequence.num_computed for sequence in running)
        return asdict(self) | {
            "occupancy": self.batched / (self.steps * scheduler.max_running) if self.steps else 0.0,
            "preemptions": scheduler.num_preemptions,
            "waiting": scheduler.num_waiting,
            "running": len(running),
            "blocks_total": pool.num_blocks,
            "blocks_free": pool.num_free,
            "blocks_cached": pool.num_cached,
            "blocks_owned": pool.num_owned,
            "kv_used_tokens": used,
            "kv_wasted_tokens": places - used,
        }
