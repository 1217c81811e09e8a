"""A model's chat template, rendered as transformers renders it but with a clock that stands still.

transformers gives templates today's date (``strftime_now``) and no way to set it, so prompts would change overnight and answers
with them. Here the template runs in an environment of our own: the same names, the same sandbox (templates come with the model
and are not trusted), a date from the configuration. Golden tests hold both equal for everything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from sparkinfer.errors import InvalidConfig, InvalidMessages, UnsupportedModel
from sparkinfer.text.messages import Message


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja source of the tokenizer's ``chat_template``.
        special_tokens: ``bos_token``, ``eos_token`` ... which templates write into the text.

    Raises:
        UnsupportedModel: the template is no Jinja that can be compiled.
    """

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise UnsupportedModel(f"The model's chat template does not compile: {error}.") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Message], *, clock: str, template_kwargs: Mapping[str, Any]) -> str:
        """The messages in the model's markup, ending where the assistant's answer begins.

        Args:
            messages: at least one.
            clock: ISO date or date and time that the template sees as now.
            template_kwargs: more names for the template (``enable_thinking`` ...).

        Raises:
            InvalidMessages: the template refuses them (unknown role, roles that do not alternate).
            InvalidConfig: ``clock`` is no date.
        """
        names = {**self._special_tokens, "tools": None, "documents": None, **template_kwargs}
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                strftime_now=standing_clock(clock),
                **names,
            )
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError, ValueError) as error:
            raise InvalidMessages(f"The model's chat template refuses these messages: {error}.") from error

    def takes_system(self) -> bool:
        """Whether a system message shows up in the prompt (some templates refuse or drop it)."""
        probe = "system-probe"
        messages: list[Message] = [{"role": "system", "content": probe}, {"role": "user", "content": "user"}]
        try:
            return probe in self.render(messages, clock="2026-01-01", template_kwargs={})
        except InvalidMessages:
            return False


def standing_clock(clock: str) -> Callable[[str], str]:
    """What a template calls for today's date, always at this ISO date (or date and time).

    Raises:
        InvalidConfig: ``clock`` is no date.
    """
    try:
        now = datetime.fromisoformat(clock)
    except ValueError as error:
        raise InvalidConfig(f"clock must be an ISO date such as 2026-01-01, not {clock!r}.") from error
    return now.strftime


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's tokens for training; here its body is only printed."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that Jinja reads

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


class _PublicNamespace(Namespace):
    """Jinja's namespace without names that begin with an underscore, which would reach Python's internals."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace may not hold {name!r}")
        super().__setitem__(name, value)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["namespace"] = _PublicNamespace
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which no model expects.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
