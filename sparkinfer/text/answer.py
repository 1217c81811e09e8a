"""The text of one answer while it grows, and what becomes of it at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkinfer.text.detokenize import Detokenizer, StopStrings
from sparkinfer.text.parse import parse_string
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.types import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An ended answer.

    Attributes:
        result: the value of the result's type.
        raw_text: what the model wrote, where that is not the result (typed answers); else None.
        warnings: of the prompt, then of the answer.
        finish_reason: ``STOP`` also where a stop string ended it.
    """

    result: str
    raw_text: str | None
    warnings: tuple[str, ...]
    finish_reason: FinishReason


class OutputText:
    """Takes an answer's ids and gives its text.

    Args:
        tokenizer: the model's.
        stop: stop strings; without any, nothing is decoded before the end.
        choices: ids of each closed choice -> its text, or None.
        warnings: of the prompt.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        choices: Mapping[tuple[int, ...], str] | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._choices = choices
        self._warnings = warnings
        self._ids: list[int] = []
        self._pieces = Detokenizer(tokenizer)
        self._watch = StopStrings(stop) if stop and choices is None else None
        self._stopped = False

    @property
    def num_ids(self) -> int:
        """Ids taken in: none beyond the one that completed a stop string."""
        return len(self._ids)

    def push(self, ids: Sequence[int]) -> bool:
        """Take new ids; True once a stop string is found, and then the engine has to finish the request."""
        for token_id in ids:
            if self._stopped:
                break
            self._ids.append(token_id)
            # One by one, so that what is found does not depend on how many came in a step.
            if self._watch is not None:
                self._stopped = self._watch.push(self._pieces.push((token_id,)))
        return self._stopped

    def close(self, finish_reason: FinishReason) -> Answer:
        """The whole answer, up to a stop string where there was one."""
        chosen = self._choices.get(tuple(self._ids)) if self._choices is not None else None
        text, warnings = (chosen, ()) if chosen is not None else parse_string(self._text())
        return Answer(
            result=text,
            raw_text=None,
            warnings=self._warnings + warnings,
            finish_reason=FinishReason.STOP if self._stopped or chosen is not None else finish_reason,
        )

    def _text(self) -> str:
        if self._watch is None:
            return self._tokenizer.decode(self._ids)
        if not self._stopped:
            self._stopped = self._watch.push(self._pieces.flush())
        return self._watch.text
