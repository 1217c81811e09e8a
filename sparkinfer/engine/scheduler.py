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
from sparkinfer.engine.guesses import MOST, Guesses
from sparkinfer.engine.plan import PlannedSequence, StepPlan
from sparkinfer.engine.prefix_cache import PrefixCache
from sparkinfer.engine.row_errors import no_token_error
from sparkinfer.engine.sequence import Sequence, SequenceStatus
from sparkinfer.errors import OutOfMemory


class Scheduler:
    """Turns requests into step plans; the caller runs them and tells what came of it.

    Args:
        settings: budget, batch size, window, time-out, whether prefixes are cached, how far a step is filled with guesses.
        num_blocks: size of the KV pool.
        block_size: tokens of a block, as the runner has it.
        default_is_plain: as the runner has it.
    """

    def __init__(
        self, settings: EngineSettings, *, num_blocks: int, block_size: int, default_is_plain: bool = False
    ) -> None:
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
        self._guess_tokens = settings.guess_tokens
        self._default_is_plain = default_is_plain

    @property
    def num_waiting(self) -> int:
        """Sequences that wait, those for a twin's prefix included."""
        return len(self._sequences) - len(self.running)

    def has_work(self) -> bool:
        """Whether a sequence is not finished."""
        return bool(self._sequences)

    def add(self, request: EngineRequest) -> None:
        """Queue a request; one whose prompt has no token, or does not fit the whole pool, comes out of :meth:`unfit`."""
        sequence = Sequence.from_request(request)
        sequence.token_ids += sequence.forced()
        if sequence.trie is not None and sequence.trie.is_complete(sequence.generated):
            sequence.token_ids.pop()  # of a single choice the last id is left to draw: its answer comes out of a step as all do
        self._sequences[request.request_id] = sequence
        if not sequence.num_prompt or self.pool.blocks_for(len(sequence.token_ids)) > self.pool.num_blocks:
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
        plan = StepPlan(items=decodes + prefills)
        self._guess(decodes, min(self._guess_tokens, self.budget.tokens) - plan.num_tokens)
        return plan

    def advance(self, item: PlannedSequence, *, accepted: int = 0) -> None:
        """The K/V of a planned item are there, and of so many of its guesses: prompts that wait for them can be admitted."""
        sequence = item.sequence
        sequence.num_computed += item.num_tokens + accepted
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
        if not sequence.num_prompt:
            return no_token_error()
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
        """One token for each running sequence that has only one to run; preemption takes from the end, so the plan stays.

        One whose drawn token forced others has more to run and comes with the prompts; its blocks are found here.
        """
        decodes: list[PlannedSequence] = []
        index = 0
        while index < len(self.running) and len(decodes) < self.budget.tokens:
            sequence = self.running[index]
            index += 1
            if self._grow(sequence) and sequence.num_uncomputed == 1:
                decodes.append(PlannedSequence(sequence, sequence.num_computed, 1, True))
        return decodes

    def _grow(self, sequence: Sequence) -> bool:
        """Give a running sequence the blocks for its tokens, taking them from the lowest-ranked; false when that is itself."""
        missing = self.pool.blocks_for(len(sequence.token_ids)) - len(sequence.block_ids)
        while missing > self.pool.num_available:
            victim = self.running[-1]
            if victim is sequence and len(self.running) == 1:
                self._preempt(victim, unfit=True)
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        if missing > 0:
            sequence.block_ids += self.pool.allocate(missing)
        return True

    def _guess(self, decodes: list[PlannedSequence], room: int) -> None:
        """Fill a step that is not full with guesses, shared out evenly; never by taking a block from somebody or the cache."""
        for left, item in zip(range(len(decodes), 0, -1), decodes, strict=True):
            if room < left:
                return
            sequence = item.sequence
            if (most := min(room // left, self._most_guesses(sequence))) < 1:
                continue
            if sequence.guesses is None:
                sequence.guesses = Guesses(sequence.token_ids)
            draft = sequence.guesses.next(most)
            item.draft = draft[: self._places_for(sequence, len(draft))]
            room -= len(item.draft)

    def _most_guesses(self, sequence: Sequence) -> int:
        """Guesses that the longest answer has room for; none where the best token is not simply taken."""
        sampling = sequence.request.sampling
        is_plain = sampling.repetition_penalty == 1.0 or (
            sampling.repetition_penalty is None and self._default_is_plain
        )
        is_best = sampling.is_greedy and is_plain and not (sampling.presence_penalty or sampling.frequency_penalty)
        if not is_best or sequence.trie is not None or sampling.logprobs is not None:
            return 0
        return min(MOST, sampling.max_tokens - sequence.num_generated - 1)

    def _places_for(self, sequence: Sequence, guesses: int) -> int:
        """Places behind the sequence's tokens, with blocks that nobody needs where so many guesses take more."""
        missing = self.pool.blocks_for(len(sequence.token_ids) + guesses) - len(sequence.block_ids)
        if 0 < missing < self.pool.num_free - self._reserve - len(self.running):
            sequence.block_ids += self.pool.allocate(missing)
        return len(sequence.block_ids) * self.pool.block_size - len(sequence.token_ids)

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
        if sequence.num_reported == 0:  # what a resumed one finds again was not given by others
            sequence.cached_tokens = min(sequence.num_computed, sequence.num_prompt)
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
