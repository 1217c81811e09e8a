"""The scheduler: decides what runs in the next step. Integers only; it knows no text, no tensor and no sampling.

A step is one packed batch under a token budget, decodes and prefill chunks together: reading the weights once serves all of
it. Every running sequence that decodes gets its token; what the budget leaves goes to prompts, first those already begun,
then newly admitted ones, in chunks. So a batch fills up as fast as the budget allows and decodes ride along.

Admission needs blocks for the whole prompt and leaves a reserve for the running sequences to grow. When blocks run out all the
same, the lowest-ranked running sequence is preempted: it gives its blocks back (the prefix cache keeps what it can) and waits
again with its tokens. The first-ranked one is never preempted, so something always advances; one that does not fit an
empty pool fails with OUT_OF_MEMORY.
"""

from __future__ import annotations

from bisect import insort

from sparkinfer.config.settings import EngineSettings
from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.blocks import BlockPool
from sparkinfer.engine.buckets import WaitingQueue
from sparkinfer.engine.budget import TokenBudget
from sparkinfer.engine.plan import PlannedSequence, StepPlan
from sparkinfer.engine.prefix_cache import PrefixCache
from sparkinfer.engine.sequence import Sequence, SequenceStatus
from sparkinfer.errors import OutOfMemory


class Scheduler:
    """Turns requests into step plans; the caller runs them and tells what came of it.

    Args:
        settings: budget, batch size, window, time-out, whether prefixes are cached.
        num_blocks: size of the KV pool.
        block_size: tokens of a block, as the runner has it.
    """

    def __init__(self, settings: EngineSettings, *, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size=block_size)
        self.cache = PrefixCache(self.pool, enabled=settings.prefix_cache)
        self.running: list[Sequence] = []  # by rank, first-ranked first
        self.num_preemptions = 0
        self._queue = WaitingQueue(window=settings.window)
        self._parked: dict[int, dict[int, Sequence]] = {}  # block that is being computed -> who waits for it, by id
        self._sequences: dict[int, Sequence] = {}  # every sequence that is not finished
        self._unfit: list[Sequence] = []
        self.budget = TokenBudget(settings.max_batch_tokens)
        self.max_running = min(settings.max_batch_size, settings.max_batch_tokens)
        self._timeout = settings.batch_timeout_ms / 1000
        self._reserve = num_blocks // 100

    @property
    def num_waiting(self) -> int:
        """Sequences that wait, those for a twin's prefix included."""
        return len(self._sequences) - len(self.running)

    def has_work(self) -> bool:
        """Whether a sequence is not finished."""
        return bool(self._sequences)

    def add(self, request: EngineRequest) -> None:
        """Queue a request; one whose prompt does not fit the whole pool comes out of :meth:`unfit`."""
        sequence = Sequence.from_request(request)
        self._sequences[request.request_id] = sequence
        if self.pool.blocks_for(len(sequence.token_ids)) > self.pool.num_blocks:
            self._unfit.append(sequence)
        else:
            self._queue.add(sequence)

    def find(self, request_id: int) -> Sequence | None:
        """The unfinished sequence of a request."""
        return self._sequences.get(request_id)

    def schedule(self, now: float) -> StepPlan:
        """The next batch; empty while one is still being filled, or when nobody can run.

        Args:
            now: monotonic seconds, on the clock of ``EngineRequest.arrival``.
        """
        decodes = self._plan_decodes()
        budget = self.budget.tokens - len(decodes)
        prefills: list[PlannedSequence] = []
        for sequence in self.running:
            if budget and sequence.num_uncomputed > 1:
                budget -= self._plan_prefill(sequence, budget, decodes, prefills)
        if self.running or self._is_batch_closed(now):
            while budget and (admitted := self._admit_next()) is not None:
                budget -= self._plan_prefill(admitted, budget, decodes, prefills)
        return StepPlan(items=decodes + prefills)

    def advance(self, item: PlannedSequence) -> None:
        """The K/V of a planned item are there: prompts that wait for them can be admitted."""
        sequence = item.sequence
        sequence.num_computed += item.num_tokens
        self._unpark(self.cache.computed(sequence, start=item.start))

    def release(self, sequence: Sequence, status: SequenceStatus) -> None:
        """End a sequence, wherever it is; its blocks go back."""
        if self._sequences.pop(sequence.request_id, None) is None:
            return
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
            self._give_blocks_back(sequence)
        elif not self._queue.remove(sequence):
            self._leave_park(sequence)
            self._unfit = [other for other in self._unfit if other is not sequence]
        sequence.status = status

    def unfit(self) -> list[Sequence]:
        """Sequences that cannot run here; the caller releases them."""
        return list(self._unfit)

    def unfit_error(self, sequence: Sequence) -> tuple[str, str]:
        """Code and sentence for one of :meth:`unfit`."""
        needed = self.pool.blocks_for(len(sequence.token_ids) + 1)
        message = (
            f"The row's {len(sequence.token_ids)} tokens need {needed} KV blocks and the engine has {self.pool.num_blocks} of "
            f"{self.pool.block_size} tokens; raise the engine setting kv_memory, shorten the prompt or lower max_tokens."
        )
        return (OutOfMemory.code, message)

    def check_integrity(self) -> None:
        """Prove blocks, prefix cache and queues consistent.

        Raises:
            AssertionError: a bug of sparkinfer.
        """
        self.pool.check_integrity(sequence.block_ids for sequence in self.running)
        self.cache.check_integrity()
        assert self.running == sorted(self.running, key=_rank), "running sequences are not in the order of their rank"
        parked = sum(len(group) for group in self._parked.values())
        assert len(self._queue) + parked + len(self._unfit) == self.num_waiting, "a waiting sequence is lost"
        for sequence in self.running:
            room = len(sequence.block_ids) * self.pool.block_size
            assert sequence.num_computed <= min(room, len(sequence.token_ids)), "K/V without a block"

    # -- planning ---------------------------------------------------------------------------------------------------------

    def _plan_decodes(self) -> list[PlannedSequence]:
        """One token for each running sequence that has only one to run; preemption takes from the end, so the plan stays."""
        size = self.pool.block_size
        decodes: list[PlannedSequence] = []
        index = 0
        while index < len(self.running) and len(decodes) < self.budget.tokens:
            sequence = self.running[index]
            index += 1
            start = sequence.num_computed
            if len(sequence.token_ids) - start != 1:
                continue
            if start == len(sequence.block_ids) * size and not self._grow(sequence):
                continue
            decodes.append(PlannedSequence(sequence, start, 1, True))
        return decodes

    def _grow(self, sequence: Sequence) -> bool:
        """Give a running sequence one more block, taking it from the lowest-ranked; false when that is itself."""
        while self.pool.num_available == 0:
            victim = self.running[-1]
            if victim is sequence and len(self.running) == 1:
                self._preempt(victim, unfit=True)
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.block_ids += self.pool.allocate(1)
        return True

    def _plan_prefill(
        self, sequence: Sequence, budget: int, decodes: list[PlannedSequence], prefills: list[PlannedSequence]
    ) -> int:
        num_tokens = min(sequence.num_uncomputed, budget)
        item = PlannedSequence(sequence, sequence.num_computed, num_tokens, num_tokens == sequence.num_uncomputed)
        (decodes if item.is_decode else prefills).append(item)
        return num_tokens

    # -- admission --------------------------------------------------------------------------------------------------------

    def _is_batch_closed(self, now: float) -> bool:
        """Whether an idle engine should start: a full batch waits, or its first request has waited long enough."""
        is_full = len(self._queue) >= self.max_running or self._queue.num_tokens >= self.budget.tokens
        return is_full or now - self._queue.oldest_arrival() >= self._timeout

    def _admit_next(self) -> Sequence | None:
        """Run the next waiting sequence; None when none can be admitted in this step.

        One that begins like a prompt being computed now is parked until that is there, and the next one has its turn.
        The first that finds no blocks ends admission: nobody overtakes it, or it would starve.
        """
        while len(self.running) < self.max_running and (sequence := self._queue.peek()) is not None:
            match = self.cache.match(sequence.token_ids)
            if match.pending is not None:
                self._queue.remove(sequence)
                self._parked.setdefault(match.pending, {})[sequence.request_id] = sequence
                continue
            return self._admit(sequence, match.blocks) if self._own_blocks(sequence, match.blocks) else None
        return None

    def _own_blocks(self, sequence: Sequence, cached: list[int]) -> bool:
        """Own the cached blocks and new ones for the rest; false, and nothing changed, where they are not there."""
        self.pool.acquire(cached)
        needed = self.pool.blocks_for(len(sequence.token_ids)) - len(cached)
        reserve = self._reserve + len(self.running) if self.running else 0
        if needed + reserve > self.pool.num_available:
            self.pool.release(cached)
            return False
        sequence.block_ids = cached + self.pool.allocate(needed)
        return True

    def _admit(self, sequence: Sequence, cached: list[int]) -> Sequence:
        self._queue.admit(sequence)
        sequence.status = SequenceStatus.RUNNING
        sequence.num_computed = len(cached) * self.pool.block_size
        if sequence.num_generated == 0:  # what a resumed one finds again was not given by others
            sequence.cached_tokens = sequence.num_computed
        self.cache.announce(sequence)
        insort(self.running, sequence, key=_rank)
        return sequence

    # -- giving back ------------------------------------------------------------------------------------------------------

    def _preempt(self, sequence: Sequence, *, unfit: bool = False) -> None:
        self.running.remove(sequence)
        self.cache.keep_computed(sequence)
        self._give_blocks_back(sequence)
        sequence.status = SequenceStatus.WAITING
        if unfit:
            self._unfit.append(sequence)
        else:
            self.num_preemptions += 1
            self._queue.add(sequence)

    def _give_blocks_back(self, sequence: Sequence) -> None:
        abandoned = self.cache.abandon(sequence)
        self.pool.release(sequence.block_ids)
        sequence.block_ids = []
        sequence.num_computed = 0
        self._unpark(abandoned)

    def _unpark(self, blocks: list[int]) -> None:
        for block in blocks:
            for sequence in self._parked.pop(block, {}).values():
                self._queue.add(sequence)

    def _leave_park(self, sequence: Sequence) -> None:
        for group in self._parked.values():
            group.pop(sequence.request_id, None)


def _rank(sequence: Sequence) -> tuple[bool, int, float, float, int]:
    return sequence.rank
