"""What ``llm_udf`` was called with: checked once, at the edge, before Spark or a model is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkinfer.errors import InvalidConfig, InvalidModelUri, InvalidParams, InvalidTemplate
from sparkinfer.hashing import PARAMS_NAME
from sparkinfer.text.template import parse_template
from sparkinfer.types import SamplingParams

#: Name of the one argument where there is no prompt template.
TEXT_NAME = "text"

OVERFLOW_POLICIES = ("error", "truncate_left", "truncate_right", "truncate_middle", "skip")
DTYPES = ("auto", "fp32", "bf16", "fp16", "int8", "fp8", "int4")
ENGINE_MODES = ("shared", "inline")
_MAX_PRIORITY = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UdfArguments:
    """The arguments of one ``llm_udf`` call; see :func:`sparkinfer.llm_udf` for their meaning.

    Raises:
        InvalidConfig: a value of the wrong type or out of its range.
        InvalidTemplate: a prompt that cannot be parsed, has no argument, or uses the name ``params``.
        InvalidModelUri: a model object instead of the place it is loaded from.
    """

    model: str | None = None
    prompt: str | None = None
    system: str | None = None
    choices: tuple[str, ...] | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    on_overflow: str = "error"
    skip_blank: bool = False
    dtype: str = "auto"
    priority: int = 0
    strict: bool = False
    fallback: bool = True
    trust_remote_code: bool = False
    engine_mode: str = "shared"
    fail_on_error: bool | None = None
    names: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        _check_model(self.model)
        for name in ("prompt", "system"):
            _check_text(name, getattr(self, name))
        object.__setattr__(self, "choices", checked_choices(self.choices))
        texts = {"model": self.model, "prompt": self.prompt, "system": self.system}
        choices = {f"choices[{number}]": choice for number, choice in enumerate(self.choices or ())}
        stops = {f"stop[{number}]": stop for number, stop in enumerate(self.sampling.stop or ())}
        for name, text in (texts | choices | stops).items():
            _check_whole_characters(name, text)
        for name in ("skip_blank", "strict", "fallback", "trust_remote_code"):
            _check_flag(name, getattr(self, name))
        if self.fail_on_error is not None:
            _check_flag("fail_on_error", self.fail_on_error)
        _check_one_of("on_overflow", self.on_overflow, OVERFLOW_POLICIES)
        _check_one_of("dtype", self.dtype, DTYPES)
        _check_one_of("engine_mode", self.engine_mode, ENGINE_MODES)
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise InvalidConfig(f"llm_udf: priority must be a whole number, not {self.priority!r}.")
        if abs(self.priority) > _MAX_PRIORITY:
            raise InvalidConfig(
                f"llm_udf: priority must be from -{_MAX_PRIORITY} to {_MAX_PRIORITY}, not {self.priority}."
            )
        object.__setattr__(self, "names", argument_names(self.prompt))


def checked_sampling(values: dict[str, Any]) -> SamplingParams:
    """Sampling parameters from ``llm_udf``'s keywords.

    Raises:
        InvalidConfig: a value of the wrong type or out of its range (of a row's own params it is a row error instead).
    """
    try:
        return SamplingParams(**values)
    except (InvalidParams, TypeError) as error:
        text = error.message if isinstance(error, InvalidParams) else str(error)
        raise InvalidConfig(f"llm_udf: {text}") from error


def checked_choices(choices: Sequence[str] | None) -> tuple[str, ...] | None:
    """The closed answers as a tuple.

    Raises:
        InvalidConfig: not a list, empty, not strings, blank or repeated.
    """
    if choices is None:
        return None
    if isinstance(choices, str) or not isinstance(choices, Sequence):
        raise InvalidConfig(f'llm_udf: choices must be a list of strings such as ["good", "bad"], not {choices!r}.')
    if not choices:
        raise InvalidConfig("llm_udf: choices is empty; give at least one answer, or leave it out for free text.")
    for choice in choices:
        if not isinstance(choice, str) or not choice.strip():
            raise InvalidConfig(f"llm_udf: choices must be non-empty strings, not {choice!r}.")
        if choice != choice.strip() or "\0" in choice:
            raise InvalidConfig(
                f"llm_udf: choices must not begin or end with white space or hold a NUL, as {choice!r} does."
            )
    repeated = sorted({choice for choice in choices if list(choices).count(choice) > 1})
    if repeated:
        raise InvalidConfig(f"llm_udf: choices names {repeated} more than once; each answer may stand there once.")
    return tuple(choices)


def argument_names(prompt: str | None) -> tuple[str, ...]:
    """The UDF's arguments in order: the template's, or the one user message.

    Raises:
        InvalidTemplate: see :class:`UdfArguments`.
    """
    if prompt is None:
        return (TEXT_NAME,)
    names = parse_template(prompt).names
    if not names:
        raise InvalidTemplate("The prompt names no column; put one in braces, for example {text}.")
    if PARAMS_NAME in names:
        raise InvalidTemplate(
            "The prompt uses {params}, which is the name of the per-row parameters; rename the argument."
        )
    return names


def _check_whole_characters(name: str, text: str | None) -> None:
    """Half of a surrogate pair has no UTF-8; no tokenizer takes it, and no answer could be compared with it."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise InvalidConfig(
            f"llm_udf: {name} holds half a character ({error.object[error.start]!r} at position {error.start}); "
            "take it out, or write the whole character."
        ) from error


def _check_model(model: object) -> None:
    if model is None:
        return
    if not isinstance(model, str):
        raise InvalidModelUri(
            f"llm_udf: model must be the place it is loaded from (hub id, folder, .gguf file, models:/name/3), not an object of "
            f"type {type(model).__name__}; the executors load it themselves, so that it never travels with the UDF."
        )
    if not model.strip():
        raise InvalidModelUri("llm_udf: model is an empty string; give a hub id, folder, .gguf file or models:/name/3.")


def _check_text(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise InvalidConfig(f"llm_udf: {name} must be a string, not {type(value).__name__}.")
    if isinstance(value, str) and not value.strip():
        raise InvalidConfig(f"llm_udf: {name} is blank; leave it out instead.")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidConfig(f"llm_udf: {name} must be True or False, not {value!r}.")


def _check_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidConfig(f"llm_udf: {name} must be one of {', '.join(allowed)}, not {value!r}.")
