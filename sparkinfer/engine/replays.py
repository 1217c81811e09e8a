"""Forwards of few tokens on the CPU, recorded once as the list of their calls and replayed: what a CUDA graph is on a card.

A step of few tokens is short enough that what Python does between two kernels, module by module, is a third of it. A recording keeps the
calls that touched numbers, torch's operators and our own kernels, with the very tensors that they read and wrote; a replay makes
the same calls again, so each row gets the same bits. A step is filled up to the next number of tokens of a few, so that recordings
are few. The tensors of all of them lie in one arena, for one of them runs at a time.

What cannot be replayed is not recorded: a forward in which Python looked at a number, drew one, or made a tensor whose shape depends on
numbers. Whatever else was missed shows itself: the first recording of each form is replayed at once over an arena of noughts and has to
give the same logits.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sparkinfer.engine.attention.base import Attention, PackedBatch, filled_up

_LOG = logging.getLogger(__name__)
#: Tokens of the steps that are recorded. Products take four rows at once, so that filling up to those is nearly free; of more than
#: the last, the kernels' own time is nearly all.
TOKENS = (1, 2, *range(4, 65, 4))
#: Steps that are met before one of their kind is recorded, which costs as much as some ten replays save.
PATIENCE = 2
#: Of numbers that lie between two calls. Pages that no recording reaches are never touched.
ARENA_BYTES = 96 * 1024**2
_LINE = 64

_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
_calls: ContextVar[list[_Call] | None] = ContextVar("sparkinfer_recorded_calls", default=None)


def run_kernel(kernel: Callable[..., None], *arguments: Any) -> None:
    """Call code that torch does not see, and note the call where a forward is recorded: its arrays are memory of tensors."""
    kernel(*arguments)
    if (calls := _calls.get()) is not None:
        calls.append((kernel, arguments, {}))


class _NotRecorded(Exception):
    """This forward cannot be replayed."""


class _ArenaFull(Exception):
    """Its tensors need more memory than recordings get."""


@dataclass(frozen=True, slots=True)
class _Recording:
    ids: torch.Tensor
    positions: torch.Tensor
    calls: list[_Call]
    logits: torch.Tensor

    def replay(self, batch: PackedBatch) -> torch.Tensor:
        """All rows' logits, which the next replay overwrites."""
        self.ids.copy_(torch.from_numpy(batch.token_ids))
        self.positions.copy_(torch.from_numpy(batch.positions))
        for call, arguments, named in self.calls:
            call(*arguments, **named)
        return self.logits


class Replays:
    """Runs steps from recordings, one for each of :data:`TOKENS` that is met.

    Args:
        forward: ``(ids [1, T], positions [1, T], rows [T]) -> logits [T, vocabulary]``, with ``attention`` behind it.
        attention: a kernel whose calls go through :func:`run_kernel` and read the step's tables when they are made.
        padding_block: a block that no sequence owns.
        block_size: tokens of a block.
        patience: how often a number of tokens is met before it is recorded.
    """

    def __init__(
        self,
        forward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
        attention: Attention,
        *,
        padding_block: int,
        block_size: int,
        patience: int = PATIENCE,
    ) -> None:
        self._forward = forward
        self._attention = attention
        self._padding_block = padding_block
        self._block_size = block_size
        self._arena = torch.empty(ARENA_BYTES, dtype=torch.uint8)
        self._patience = patience
        self._met = Counter[int]()
        self._recordings: dict[int, _Recording] = {}
        self._proved: set[tuple[Any, ...]] = set()
        self._most = TOKENS[-1]
        self.works = True  # until one step cannot be recorded

    @property
    def recorded(self) -> list[int]:
        """Numbers of tokens whose steps are replayed."""
        return sorted(self._recordings)

    def run(self, batch: PackedBatch) -> torch.Tensor | None:
        """The logits ``[T, vocabulary]``, K/V stored; None for a step that has to be run as it is."""
        count = batch.num_tokens
        if not self.works or count > self._most or len(batch.sample_rows) != count:
            return None
        size = TOKENS[bisect_left(TOKENS, count)]
        recording = self._recordings.get(size)
        self._met[size] += 1
        if recording is None and self._met[size] <= self._patience:
            return None
        batch = filled_up(batch, size, padding_block=self._padding_block, block_size=self._block_size)
        self._attention.begin(batch)
        if recording is not None:
            return recording.replay(batch)[:count].clone()
        try:
            self._recordings[size], logits = self._record(batch)
        except _ArenaFull:
            self._most = TOKENS[TOKENS.index(size) - 1] if size > TOKENS[0] else 0
            return None
        except Exception as error:  # whatever a model does there, it can do it without being watched
            self.works = False
            self._recordings.clear()
            _LOG.info("Steps are not recorded: %s", (str(error).splitlines() or [repr(error)])[0])
            return None
        return logits[:count]

    def _record(self, batch: PackedBatch) -> tuple[_Recording, torch.Tensor]:
        ids, positions = torch.from_numpy(batch.token_ids.copy()), torch.from_numpy(batch.positions.copy())
        rows, calls = torch.arange(batch.num_tokens), list[_Call]()
        token = _calls.set(calls)
        try:
            with (watch := _Watch(calls, self._arena)):
                result = self._forward(ids[None], positions[None], rows)
        finally:
            _calls.reset(token)
        recording, logits = _Recording(ids, positions, calls, result), result.clone()
        form = tuple(_name(call) for call, _, _ in calls)
        if form not in self._proved:
            self._arena[: watch.used].fill_(255)  # as float no number, as index none
            if not torch.equal(recording.replay(batch), logits):
                raise _NotRecorded("a replay gave other logits.")
            self._proved.add(form)
        return recording, logits


class _Watch(TorchDispatchMode):
    """Notes the operators that run within it, and lets their results lie in the arena."""

    def __init__(self, calls: list[_Call], arena: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls
        self._arena = arena
        self.used = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        result = operator(*args, **named)
        if operator.is_view and isinstance(result, torch.Tensor) and _memory(result) == _memory(args[0]):
            return result  # the quick way for nine of ten; `to`, `reshape` and `contiguous` may copy
        given = {_memory(one) for one in _tensors((*args, *named.values()))}
        found = _tensors(result if isinstance(result, tuple | list) else (result,))
        fresh = [one for one in found if one.numel() and _memory(one) not in given]
        if found and not fresh and not operator._schema.is_mutable:
            return result
        _refuse(operator, args, found, fresh)
        if not fresh:
            self._calls.append((operator, args, named))
            return result
        placed = [self._placed(one) for one in found]
        if "empty" not in operator._schema.name:
            self._calls.append((_Again(operator, placed), args, named))
        return type(result)(placed) if isinstance(result, tuple | list) else placed[0]

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of the same form that lies in the arena."""
        length = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        first = self.used
        self.used += math.ceil(length * tensor.element_size() / _LINE) * _LINE
        if self.used > len(self._arena):
            raise _ArenaFull
        piece = self._arena[first : first + length * tensor.element_size()].view(tensor.dtype)
        return piece.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


class _Again:
    """Runs an operator and puts its results where they were when it was recorded."""

    __slots__ = ("_targets", "operator")

    def __init__(self, operator: Any, targets: list[torch.Tensor]) -> None:
        self.operator = operator
        self._targets = targets

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        result = self.operator(*args, **kwargs)
        found = _tensors(result if isinstance(result, tuple | list) else (result,))
        for target, one in zip(self._targets, found, strict=True):
            target.copy_(one)


def _refuse(operator: Any, args: tuple[Any, ...], found: list[torch.Tensor], fresh: list[torch.Tensor]) -> None:
    """Raise for what a replay would not do again."""
    if not found:
        raise _NotRecorded(f"Python asks for a number ({operator}).")
    if 0 < len(fresh) < len(found) or (fresh and operator._schema.is_mutable):
        raise _NotRecorded(f"{operator} gives new tensors beside others.")
    is_masked = any(one.dtype in (torch.bool, torch.uint8) for one in _tensors(args))
    is_index = "index" in operator._schema.name and not is_masked  # by numbers: as many results as indices
    if torch.Tag.dynamic_output_shape in operator.tags and not is_index:
        raise _NotRecorded(f"{operator} makes a shape of numbers.")
    if torch.Tag.nondeterministic_seeded in operator.tags:
        raise _NotRecorded(f"{operator} draws numbers.")


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Those among them and in lists among them: operators nest no deeper."""
    found = []
    for one in values:
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            found += [each for each in one if isinstance(each, torch.Tensor)]
    return found


def _name(call: Callable[..., Any]) -> Any:
    return call.operator if isinstance(call, _Again) else call
