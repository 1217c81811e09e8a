"""Requests that wait: which one is admitted next, and when a batch that is being filled is closed.

Order: priority, then earliest deadline, then age. Among requests of equal priority and deadline those that belong together
come together: the ``window`` best-placed ones are bucketed by task and length, and inside a bucket they are sorted by their
token ids, so that prompts that begin alike are neighbours, however long their common prefix is. A bucket is drained before
the next one is begun.

None starves: every :data:`OLDEST_EVERY`-th admission is the oldest request's, whatever its priority. So a request that
``n`` older ones wait with is admitted after at most ``OLDEST_EVERY * (n + 1)`` admissions.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

from sparkinfer.engine.sequence import Sequence

OLDEST_EVERY = 8
GROUPED_IDS = 1024  # prompts that are alike for longer than this are neighbours only by chance

_SPARE = 1024  # entries that are not worth a sweep

BucketKey = tuple[int, int]
Heap = list[tuple[Any, int, Sequence]]  # (order, ticket, sequence)


def bucket_of(sequence: Sequence) -> BucketKey:
    """Task and length class; a class spans a factor of two."""
    return (sequence.request.task, len(sequence.token_ids).bit_length())


class WaitingQueue:
    """A priority queue that groups like with like. Every operation is O(log n), plus one look at each bucket's head.

    Each stay has a ticket. Heap entries of a stay that is over are dropped when they come to the top, and all of them together before
    they outnumber the others by far: what is left of a bucket by age may never come to its top.

    Args:
        window: how many waiting requests are grouped; later ones wait in plain order.
    """

    def __init__(self, *, window: int) -> None:
        self._window = window
        self._tickets: dict[int, int] = {}  # request -> ticket of its stay
        self._grouped: set[int] = set()
        self._backlog: Heap = []
        self._buckets: dict[BucketKey, Heap] = {}
        self._by_age: Heap = []
        self._current: BucketKey | None = None
        self._since_oldest = 0
        self._next_ticket = count()
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait; one that waited before keeps its age."""
        ticket = self._tickets[sequence.request_id] = next(self._next_ticket)
        self.num_tokens += len(sequence.token_ids)
        heappush(self._backlog, (sequence.rank, ticket, sequence))
        heappush(self._by_age, (sequence.request.arrival, ticket, sequence))
        self._sweep()

    def remove(self, sequence: Sequence) -> bool:
        """Take a sequence out without admitting it (aborted, or waiting for something else); whether it was there."""
        if self._tickets.pop(sequence.request_id, None) is None:
            return False
        self._grouped.discard(sequence.request_id)
        self.num_tokens -= len(sequence.token_ids)
        if not self._tickets:
            self._forget_all()
        return True

    def admit(self, sequence: Sequence) -> None:
        """Take out the sequence that :meth:`peek` showed, to run it."""
        if self._is_oldest_due():
            self._since_oldest = 0
            sequence.aged = True
        else:
            self._since_oldest += 1
        self._current = bucket_of(sequence)
        self.remove(sequence)

    def peek(self) -> Sequence | None:
        """The next sequence to be admitted; None when nobody waits."""
        if not self._tickets:
            return None
        if self._is_oldest_due():
            return self._head(self._by_age)
        self._fill_window()
        heads = {key: head for key in list(self._buckets) if (head := self._bucket_head(key)) is not None}
        best = min(heads.values(), key=lambda sequence: sequence.rank)
        current = heads.get(self._current) if self._current is not None else None
        return current if current is not None and current.urgency <= best.urgency else best

    def oldest_arrival(self) -> float:
        """When the request that has waited longest came (monotonic seconds); infinity when nobody waits."""
        head = self._head(self._by_age)
        return float("inf") if head is None else head.request.arrival

    def _is_oldest_due(self) -> bool:
        return self._since_oldest >= OLDEST_EVERY - 1

    def _fill_window(self) -> None:
        """Group the best-placed of the backlog; one that outranks all that are grouped never waits for room."""
        while (sequence := self._head(self._backlog)) is not None:
            if len(self._grouped) >= self._window and not self._outranks_all(sequence):
                return
            _, ticket, _ = heappop(self._backlog)
            self._grouped.add(sequence.request_id)
            order = (sequence.urgency, tuple(sequence.token_ids[:GROUPED_IDS]), sequence.request.arrival)
            heappush(self._buckets.setdefault(bucket_of(sequence), []), (order, ticket, sequence))

    def _outranks_all(self, sequence: Sequence) -> bool:
        heads = (self._bucket_head(key) for key in list(self._buckets))
        return all(head is None or sequence.urgency < head.urgency for head in heads)

    def _bucket_head(self, key: BucketKey) -> Sequence | None:
        head = self._head(self._buckets[key])
        if head is None:
            del self._buckets[key]
        return head

    def _head(self, heap: Heap) -> Sequence | None:
        """The first that still waits."""
        while heap:
            _, ticket, sequence = heap[0]
            if self._tickets.get(sequence.request_id) == ticket:
                return sequence
            heappop(heap)
        return None

    def _sweep(self) -> None:
        """Drop what is over from all heaps where half of the entries are; each that waits stands in two heaps."""
        heaps = (self._backlog, self._by_age, *self._buckets.values())
        if sum(map(len, heaps)) <= 4 * len(self._tickets) + _SPARE:
            return
        for heap in heaps:
            heap[:] = [entry for entry in heap if self._tickets.get(entry[2].request_id) == entry[1]]
            heapify(heap)

    def _forget_all(self) -> None:
        for heap in (self._backlog, self._by_age):
            heap.clear()
        self._buckets.clear()
        self._grouped.clear()
