"""Prompt templates: text with ``{name}`` arguments and nothing else.

``{{`` and ``}}`` are braces. No attribute or index access, no format specification, no conversion: a template is written by one
person and filled with another's data, so it can only insert, and what is inserted is never looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparkinfer.errors import InvalidTemplate

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template.

    Attributes:
        names: its arguments in order of first appearance; the order of ``Request.values``.
        parts: literal texts and argument names in turn, literals at the even places.
    """

    names: tuple[str, ...]
    parts: tuple[str, ...]

    def render(self, values: Mapping[str, str | None]) -> str:
        """The template with its arguments filled in; a null renders empty."""
        return "".join((values[part] or "") if index % 2 else part for index, part in enumerate(self.parts))


def parse_template(source: str) -> Template:
    """Parse a prompt template.

    Raises:
        InvalidTemplate: a brace without its partner, or something in braces that is not a plain name; says where.
    """
    literal, parts, names = "", [], dict[str, None]()
    position = 0
    for match in _TOKEN.finditer(source):
        literal += source[position : match.start()]
        position = match.end()
        if match[0] in ("{{", "}}"):
            literal += match[0][0]
            continue
        name = _checked_name(source, match)
        parts += [literal, name]
        names[name] = None
        literal = ""
    parts.append(literal + source[position:])
    return Template(names=tuple(names), parts=tuple(parts))


def _checked_name(source: str, match: re.Match[str]) -> str:
    name = match[1]
    if name is None:
        other = "}" if match[0] == "{" else "{"
        why = f"a {match[0]!r} without its {other!r}; write {match[0] * 2!r} for a brace"
    elif name.isidentifier():
        return str(name)
    elif not name.strip():
        why = "empty braces; name the argument, as in {text}, or write {{}} for braces"
    elif any(sign in name for sign in ".[:!"):
        why = f"{match[0]!r} is more than a name; attributes, indexes, conversions and formats are not taken, compute a column instead"
    else:
        why = f"{name!r} is not a name of letters, digits and underscores; write {{{{ and }}}} for braces"
    line = source.count("\n", 0, match.start()) + 1
    column = match.start() - source.rfind("\n", 0, match.start())
    raise InvalidTemplate(f"Prompt template, line {line}, column {column}: {why}.")
