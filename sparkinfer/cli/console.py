"""What a command says: text for people on a terminal, one JSON object for programs, errors as one line.

People's text goes to stdout, errors and warnings to stderr. With ``--json`` people's text goes to stderr too, so that the
last line of stdout is the object, and the only one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

#: Lines of plain output are never cut by a guessed terminal width.
PLAIN_WIDTH = 200


def people(*, as_json: bool = False) -> Console:
    """The console for people: rich on a terminal, plain wide lines elsewhere."""
    stream = sys.stderr if as_json else sys.stdout
    is_terminal = stream.isatty()
    return Console(file=stream, highlight=False, soft_wrap=True, width=None if is_terminal else PLAIN_WIDTH)


def print_json(values: Mapping[str, Any]) -> None:
    """One object on one line, as the last line of stdout."""
    sys.stdout.flush()
    print(json.dumps(values, ensure_ascii=False, default=str), flush=True)


def print_error(message: str) -> None:
    """One line on stderr, red on a terminal."""
    stream = Console(file=sys.stderr, highlight=False, soft_wrap=True)
    stream.print(Text(" ".join(message.split()), style="red"))
