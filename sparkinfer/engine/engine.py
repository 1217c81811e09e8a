"""The packed engine: schedule -> run -> collect, one batch a step. It knows ids and when an answer ends; no text, no tensor."""

from __future__ import annotations

import time
from collections.abc import Callable

from sparkinfer.config.settings import EngineSettings
from sparkinfer.engine.base import EngineRequest, TokenOutput
from sparkinfer.engine.plan import PlannedSequence, Runner, RunnerLost, SampledToken, StepPlan, StepResult
from sparkinfer.engine.row_errors import row_error
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.sequence import Sequence, SequenceStatus
from sparkinfer.engine.stats import EngineStats
from sparkinfer.types import FinishReason


class PackedEngine:
    """Continuous batching over a runner; implements :class:`sparkinfer.engine.base.Engine`.

    Args:
        runner: computes the plans; closed with the engine.
        settings: how to batch.
        clock: monotonic seconds, the clock of ``EngineRequest.arrival``.
    """

    def __init__(
        self, runner: Runner, settings: EngineSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.info = runner.info
        self.runner = runner
        self._clock = clock
        self._scheduler = Scheduler(
            settings,
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            default_is_plain=runner.default_is_plain,
        )
        self._stats = EngineStats()
        self._plan: StepPlan | None = None

    def add(self, request: EngineRequest) -> None:
        """Queue a request."""
        self._stats.requests += 1
        self._scheduler.add(request)

    def abort(self, request_id: int) -> None:
        """Drop a request: nobody wants its answer any longer."""
        self._stats.aborted += self._end(request_id)

    def finish(self, request_id: int) -> None:
        """End a request whose text is complete."""
        self._stats.finished += self._end(request_id)

    def step(self) -> list[TokenOutput]:
        """Run the next batch; outputs of requests that got a token, ended or failed."""
        plan, self._plan = self._next_plan(), None
        plan.items = [item for item in plan.items if _is_running(item)]  # the others were ended after the plan was made
        outputs = [self._fail(sequence, *self._scheduler.unfit_error(sequence)) for sequence in self._scheduler.unfit()]
        return outputs + self._run(plan) if plan.items else outputs

    def has_work(self) -> bool:
        """Whether a waiting or running request is left."""
        return self._scheduler.has_work()

    def running_ids(self) -> list[int]:
        """The batch that runs, or between steps the one that :meth:`step` would run next (it is planned now and kept)."""
        return [item.sequence.request_id for item in self._next_plan().items if _is_running(item)]

    def stats(self) -> dict[str, float]:
        """Counters, see :class:`sparkinfer.engine.stats.EngineStats`."""
        return self._stats.snapshot(self._scheduler)

    def check_integrity(self) -> None:
        """Prove that no block is leaked or shared by mistake.

        Raises:
            AssertionError: a bug of sparkinfer.
        """
        self._scheduler.check_integrity()

    def close(self) -> None:
        """Give memory back."""
        self.runner.close()

    def _next_plan(self) -> StepPlan:
        if self._plan is None:
            plan = self._scheduler.schedule(self._clock())
            if not plan.items:
                return plan  # a batch still being filled: look again at the next step
            self._plan = plan
        return self._plan

    def _end(self, request_id: int) -> bool:
        """Release a request between steps, or within one (its token is then ignored); whether there was one."""
        sequence = self._scheduler.find(request_id)
        if sequence is None:
            return False
        self._scheduler.release(sequence, SequenceStatus.FINISHED)
        return True

    def _run(self, plan: StepPlan) -> list[TokenOutput]:
        self._stats.count_step(plan, block_size=self.runner.block_size, max_model_len=self.info.max_model_len)
        try:
            result = self.runner.run(plan)
        except RunnerLost:
            raise
        except Exception as error:  # whatever else a step raises is its rows' failure; the engine goes on
            return self._after_failed_step(plan, error)
        self._scheduler.budget.succeeded()
        return self._collect(plan, result)

    def _after_failed_step(self, plan: StepPlan, error: Exception) -> list[TokenOutput]:
        """Nothing was computed. Run it again with half the tokens; what failed alone fails for good."""
        self._stats.failed_steps += 1
        self._scheduler.budget.shrink(plan.num_tokens)
        alive = [item for item in plan.items if _is_running(item)]
        if plan.num_tokens > 1 or not alive:
            return []
        return [self._fail(alive[0].sequence, *row_error(error))]

    def _collect(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        outputs = []
        tokens = iter(result.tokens)
        for index, item in enumerate(plan.items):
            token = next(tokens) if item.samples else None
            if not _is_running(item):
                continue
            if index in result.failed:
                outputs.append(self._fail(item.sequence, *result.failed[index]))
                continue
            if token is None:
                self._scheduler.advance(item)
            else:
                outputs.append(self._accept(item, token))
        return outputs

    def _accept(self, item: PlannedSequence, token: SampledToken) -> TokenOutput:
        """Take in what a step drew: the guesses that were right, the token after them, and what that leaves no choice about."""
        sequence = item.sequence
        if sequence.num_reported == 0:
            self._stats.prompt_tokens += sequence.num_prompt
            self._stats.cached_tokens += sequence.cached_tokens
        reason = None
        for token_id in (*item.draft[: token.accepted], token.token_id):
            reason = self._append(sequence, token_id)
            if reason is not None:
                break
        self._scheduler.advance(item, accepted=min(token.accepted, sequence.num_uncomputed - item.num_tokens))
        if item.draft:
            self._stats.count_guesses(len(item.draft), token.accepted)
            if sequence.guesses is not None:
                sequence.guesses.learn(len(item.draft), token.accepted)
        new_ids = tuple(sequence.token_ids[sequence.num_prompt + sequence.num_reported :])
        sequence.num_reported += len(new_ids)
        self._stats.completion_tokens += len(new_ids)
        if reason is not None:
            self._scheduler.release(sequence, SequenceStatus.FINISHED)
            self._stats.finished += 1
        return TokenOutput(
            request_id=sequence.request_id,
            token_ids=new_ids,
            logprobs=None if token.logprob is None or not new_ids else (token.logprob,),
            finish_reason=reason,
            cached_tokens=sequence.cached_tokens,
        )

    def _append(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        """Add a token, unless it ends the answer without being part of it; why the answer ends, None while it goes on."""
        if sequence.is_ended_by(token_id):
            return FinishReason.STOP
        sequence.token_ids.append(token_id)
        sequence.token_ids += sequence.forced()
        return self._finish_reason(sequence)

    def _finish_reason(self, sequence: Sequence) -> FinishReason | None:
        """Why the sequence ends with its last token; None while it goes on. A choice runs to its end, whatever max_tokens."""
        request = sequence.request
        if sequence.trie is not None:
            return FinishReason.STOP if sequence.trie.is_complete(sequence.generated) else None
        is_full = len(sequence.token_ids) >= self.info.max_model_len
        return FinishReason.LENGTH if is_full or sequence.num_generated >= request.sampling.max_tokens else None

    def _fail(self, sequence: Sequence, code: str, message: str) -> TokenOutput:
        self._scheduler.release(sequence, SequenceStatus.FAILED)
        self._stats.failed += 1
        return TokenOutput(
            request_id=sequence.request_id,
            finish_reason=FinishReason.ERROR,
            error=(code, message),
            cached_tokens=sequence.cached_tokens,
        )


def _is_running(item: PlannedSequence) -> bool:
    return item.sequence.status is SequenceStatus.RUNNING
