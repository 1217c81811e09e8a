"""One task's conversions: a row's values -> prompt ids, and the answer's ids -> text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparkinfer.config.specs import TaskSpec
from sparkinfer.errors import EmptyPrompt, InvalidParams, PromptTooLong, RowError, UnknownToken
from sparkinfer.text.answer import Answer, OutputText
from sparkinfer.text.chat import standing_clock
from sparkinfer.text.choices import ChoiceIds, check_choices, choice_ids
from sparkinfer.text.draft import Draft, DraftBuilder
from sparkinfer.text.overflow import Fitted, check_policy, fit
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.types import Completion, FinishReason, Request, SamplingParams

__all__ = ["Answer", "OutputText", "Prompt", "TextTask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A row ready for the engine.

    Attributes:
        ids: the prompt's token ids, at least one; with ``sampling.max_tokens`` they fit the context.
        sampling: the task's parameters with the row's own over them; with choices, max_tokens is what the longest one needs.
        choices: token ids of each closed choice, in the task's order, or None.
        stop_ids: ids that end the answer (none where ``ignore_eos``).
        warnings: found so far, the request's own first.
    """

    ids: list[int]
    sampling: SamplingParams
    choices: ChoiceIds | None
    stop_ids: frozenset[int]
    warnings: tuple[str, ...]


class TextTask:
    """Prepares the prompts and reads the answers of one TaskSpec with one tokenizer. Thread-safe.

    Args:
        task: what to ask.
        tokenizer: the model's.
        max_model_len: the context: prompt and completion in tokens.
        vocab_size: how many token ids the model knows; None: all.

    Raises:
        InvalidTemplate: the prompt does not parse, or its arguments are not ``task.names``.
        InvalidConfig: choices that cannot be told apart, an unknown overflow policy, a clock that is no date.
    """

    def __init__(self, task: TaskSpec, tokenizer: Tokenizer, max_model_len: int, vocab_size: int | None = None) -> None:
        check_policy(task.on_overflow)
        standing_clock(task.clock)
        if task.choices is not None:
            check_choices(task.choices)
        self._task = task
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        known = (i for i in tokenizer.stop_ids if vocab_size is None or i < vocab_size)  # no others can come out
        self._stop_ids = frozenset(known)
        self._drafts = DraftBuilder(task, tokenizer)
        self._choices: dict[str, ChoiceIds] = {}

    def prepare(self, request: Request) -> Prompt | Completion:
        """The row's prompt, or its completion where it fails or is skipped before it reaches the engine."""
        try:
            return self._prompt(request)
        except RowError as error:
            skipped = isinstance(error, PromptTooLong) and self._task.on_overflow == "skip"
            return _skipped(request) if skipped else _failed(request, error)

    def stream(self, prompt: Prompt) -> OutputText:
        """Where the answer's ids go."""
        closed = None
        if prompt.choices is not None and self._task.choices is not None:
            closed = dict(zip(prompt.choices, self._task.choices, strict=True))
        return OutputText(self._tokenizer, stop=prompt.sampling.stop, choices=closed, warnings=prompt.warnings)

    def _prompt(self, request: Request) -> Prompt:
        sampling = self._task.sampling.merged(request.params_json)
        draft = self._drafts.build(request)
        choices = self._choice_ids(draft)
        if choices is not None:
            # One more than the longest: a choice that begins another one ends with a stop id.
            sampling = replace(sampling, max_tokens=max(map(len, choices)) + 1)
        fitted = self._fit(draft, sampling.max_tokens)
        if not fitted.ids:
            raise EmptyPrompt(
                "The prompt has no token, for its text is empty and this model begins none itself; "
                "set skip_blank=True or give the template words of its own."
            )
        self._check_known(fitted.ids)
        return Prompt(
            ids=fitted.ids,
            sampling=sampling,
            choices=choices,
            stop_ids=frozenset() if sampling.ignore_eos and choices is None else self._stop_ids,
            warnings=(*draft.warnings, *([fitted.warning] if fitted.warning else [])),
        )

    def _fit(self, draft: Draft, max_tokens: int) -> Fitted:
        room = self._max_model_len - max_tokens
        if room < 1:
            raise InvalidParams(
                f"max_tokens {max_tokens} leaves no room for a prompt in the context of {self._max_model_len} tokens; "
                "lower max_tokens or use a model with a longer context."
            )
        return fit(
            draft.texts, encode=draft.encode, tokenizer=self._tokenizer, room=room, policy=self._task.on_overflow
        )

    def _choice_ids(self, draft: Draft) -> ChoiceIds | None:
        """The choices behind this prompt's end; only few different ends occur, so each is worked out once."""
        if self._task.choices is None:
            return None
        end = draft.end()
        if end not in self._choices:
            open_end = not self._tokenizer.has_chat_template and not end[-1:].isspace()
            texts = [" " + choice if open_end else choice for choice in self._task.choices]
            found = choice_ids(texts, tokenizer=self._tokenizer, prompt_end=end)
            self._check_known([token_id for ids in found for token_id in ids])
            self._choices[end] = found
        return self._choices[end]

    def _check_known(self, ids: Sequence[int]) -> None:
        """A GPU that is asked for a row of the embedding that is not there is lost to its process."""
        if self._vocab_size is not None and (largest := max(ids)) >= self._vocab_size:
            raise UnknownToken(
                f"The tokenizer gives the id {largest}, and the model knows {self._vocab_size}; use the tokenizer that the model was "
                "trained with, or resize the model's embedding for the tokens that were added."
            )


def _failed(request: Request, error: RowError) -> Completion:
    return Completion(
        row=request.row,
        input_hash=request.input_hash,
        error_code=error.code,
        error_message=error.message,
        finish_reason=FinishReason.ERROR,
        warnings=request.warnings,
    )


def _skipped(request: Request) -> Completion:
    return Completion(
        row=request.row,
        input_hash=request.input_hash,
        finish_reason=FinishReason.SKIPPED,
        warnings=(*request.warnings, PromptTooLong.code),
    )
