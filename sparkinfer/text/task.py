"""One task's conversion: a row's values -> prompt ids, and the answer's ids -> text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkinfer.config.specs import TaskSpec
from sparkinfer.errors import RowError
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.types import Completion, FinishReason, Request, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A row ready for the engine.

    Attributes:
        ids: the prompt's token ids, at least one; with ``sampling.max_tokens`` they fit the context.
        sampling: the task's parameters with the row's own over them.
        choices: token ids of each closed choice, in the task's order, or None.
        stop_ids: ids that end the answer (none where ``ignore_eos``).
        warnings: found so far, the request's own first.
    """

    ids: list[int]
    sampling: SamplingParams
    choices: tuple[tuple[int, ...], ...] | None
    stop_ids: frozenset[int]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A completion's text. ``result`` is the typed value, ``raw_text`` what the model wrote where it differs."""

    result: str
    raw_text: str | None
    warnings: tuple[str, ...]
    finish_reason: FinishReason


class OutputText:
    """The text of one answer while it grows."""

    def __init__(self, tokenizer: Tokenizer, prompt: Prompt) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._ids: list[int] = []

    def push(self, ids: Sequence[int]) -> bool:
        """Take new ids; True once a stop string is found (then the engine should finish the request)."""
        self._ids.extend(ids)
        return False

    def close(self, finish_reason: FinishReason) -> Answer:
        """The whole answer."""
        text = self._tokenizer.decode(self._ids)
        return Answer(result=text, raw_text=None, warnings=self._prompt.warnings, finish_reason=finish_reason)


class TextTask:
    """Prepares the prompts and reads the answers of one TaskSpec with one tokenizer."""

    def __init__(self, task: TaskSpec, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._choices = None
        if task.choices is not None:
            self._choices = tuple(tuple(tokenizer.encode(choice)) for choice in task.choices)

    def prepare(self, request: Request) -> Prompt | Completion:
        """The row's prompt, or its completion where it fails or is skipped before it reaches the engine."""
        try:
            sampling = self._task.sampling.merged(request.params_json)
        except RowError as error:
            return Completion(
                row=request.row,
                input_hash=request.input_hash,
                error_code=error.code,
                error_message=error.message,
                finish_reason=FinishReason.ERROR,
                warnings=request.warnings,
            )
        template = self._task.prompt if self._task.prompt is not None else "{" + self._task.names[0] + "}"
        text = template
        for name, value in zip(self._task.names, request.values, strict=True):
            text = text.replace("{" + name + "}", value or "")
        messages = [{"role": "user", "content": text}]
        if self._task.system:
            messages.insert(0, {"role": "system", "content": self._task.system})
        rendered = self._tokenizer.chat(messages, clock=self._task.clock, template_kwargs=self._task.template_kwargs)
        return Prompt(
            ids=self._tokenizer.encode(rendered),
            sampling=sampling,
            choices=self._choices,
            stop_ids=frozenset() if sampling.ignore_eos else self._tokenizer.stop_ids,
            warnings=request.warnings,
        )

    def stream(self, prompt: Prompt) -> OutputText:
        """Where the answer's ids go."""
        return OutputText(self._tokenizer, prompt)
