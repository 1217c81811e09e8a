"""A row's prompt before it is cut to length: which of its texts may be cut, and how they become ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sparkinfer.config.specs import TaskSpec
from sparkinfer.errors import InvalidMessages, InvalidTemplate
from sparkinfer.text.control import ControlTokens
from sparkinfer.text.messages import Message, parse_messages
from sparkinfer.text.parse import clean_input
from sparkinfer.text.template import Template, parse_template
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.types import Request

INVALID_UTF8 = "INVALID_UTF8"
NULL_ARGUMENT = "NULL_ARGUMENT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One row's prompt.

    Attributes:
        texts: the row's texts that an overflow policy may cut.
        encode: the prompt's ids with these (or shorter) texts in their places.
        end: gives the prompt's end, behind which the answer begins.
        warnings: the request's, INVALID_UTF8 where a lone surrogate was replaced, and NULL_ARGUMENT where a null became an empty text.
    """

    texts: tuple[str, ...]
    encode: Callable[[Sequence[str]], list[int]]
    end: Callable[[], str]
    warnings: tuple[str, ...]


class DraftBuilder:
    """Builds the drafts of one task.

    Raises:
        InvalidTemplate: the prompt does not parse, or its arguments are not ``task.names``.
    """

    def __init__(self, task: TaskSpec, tokenizer: Tokenizer) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._template = _template(task)
        self._control = ControlTokens(tokenizer)

    def build(self, request: Request) -> Draft:
        """The draft of one row.

        Raises:
            InvalidMessages: messages that are no list of role and content, or stand where a text belongs.
        """
        if "m" not in request.tags:
            values = [None if value is None else clean_input(value) for value in request.values]
            warnings = _warnings(request, replaced=values != list(request.values))
            if None in values:
                warnings = (*warnings, NULL_ARGUMENT)
            return self._from_template(values, request.tags, warnings)
        if self._task.prompt is not None or len(request.values) != 1:
            raise InvalidMessages("Messages cannot stand inside a prompt template; leave prompt out or pass text.")
        given = parse_messages(request.values[0] or "")
        messages = [{name: clean_input(v) if isinstance(v, str) else v for name, v in m.items()} for m in given]
        return self._from_messages(messages, _warnings(request, replaced=messages != given))

    def _from_template(self, values: Sequence[str | None], tags: str, warnings: tuple[str, ...]) -> Draft:
        names = self._template.names
        masked = {name: self._control.mask(value or "") for name, value in zip(names, values, strict=True)}
        cuttable = [name for name, tag in zip(names, tags, strict=True) if tag == "s"]

        def render(texts: Sequence[str]) -> str:
            replaced = zip(cuttable, map(self._control.mask, texts), strict=True)
            return self._rendered([{"role": "user", "content": self._template.render({**masked, **dict(replaced)})}])

        texts = tuple(value or "" for value, tag in zip(values, tags, strict=True) if tag == "s")
        return self._draft(texts, render, warnings)

    def _from_messages(self, messages: list[Message], warnings: tuple[str, ...]) -> Draft:
        cuttable = [
            index for index, message in enumerate(messages) if message["role"] == "user" and "content" in message
        ]

        def render(texts: Sequence[str]) -> str:
            shown = [{name: self._masked(value) for name, value in message.items()} for message in messages]
            for index, text in zip(cuttable, texts, strict=True):
                shown[index]["content"] = self._control.mask(text)
            return self._rendered(shown)

        texts = tuple(str(messages[index]["content"]) for index in cuttable)
        return self._draft(texts, render, warnings)

    def _draft(
        self, texts: tuple[str, ...], render: Callable[[Sequence[str]], str], warnings: tuple[str, ...]
    ) -> Draft:
        plain = not self._tokenizer.has_chat_template
        return Draft(
            texts=texts,
            encode=lambda kept: self._control.encode(render(kept), bos=plain),
            end=lambda: _open_end(self._control.unmask(render(texts))) if plain else self._markup_end,
            warnings=warnings,
        )

    def _rendered(self, messages: list[Message]) -> str:
        return self._tokenizer.chat(
            self._with_system(messages), clock=self._task.clock, template_kwargs=self._task.template_kwargs
        )

    def _with_system(self, messages: list[Message]) -> list[Message]:
        """The task's system message first, unless the row brings its own; into the first message where there is no place."""
        system = self._task.system
        if not system or messages[0]["role"] == "system":
            return messages
        if self._tokenizer.takes_system or not self._tokenizer.has_chat_template:
            return [{"role": "system", "content": system}, *messages]
        first = {**messages[0], "content": f"{system}\n\n{messages[0].get('content', '')}"}
        return [first, *messages[1:]]

    def _masked(self, value: object) -> object:
        return self._control.mask(value) if isinstance(value, str) else value

    @cached_property
    def _markup_end(self) -> str:
        """What the chat template writes behind the last message; the same for every row."""
        return self._rendered([{"role": "user", "content": "x"}])


def _template(task: TaskSpec) -> Template:
    if task.prompt is None:
        if len(task.names) != 1:
            raise InvalidTemplate(f"Without a prompt there is one argument, not {list(task.names)}; write a prompt.")
        return Template(names=task.names, parts=("", task.names[0], ""))
    template = parse_template(task.prompt)
    if template.names != task.names:
        raise InvalidTemplate(f"The prompt's arguments are {list(template.names)}, the task's {list(task.names)}.")
    return template


def _warnings(request: Request, *, replaced: bool) -> tuple[str, ...]:
    new = replaced and INVALID_UTF8 not in request.warnings
    return (*request.warnings, INVALID_UTF8) if new else request.warnings


def _open_end(prompt: str) -> str:
    """Of a plain prompt's end only the white space matters for how an answer begins."""
    return "x" + prompt[len(prompt.rstrip()) :]
