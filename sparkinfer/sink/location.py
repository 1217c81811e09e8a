"""Names and places of tables: is it a path, how does SQL write it."""

from __future__ import annotations

import re
from pathlib import Path

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:/")


def is_path(table: str) -> bool:
    """Whether this is a path (has a ``/`` or a scheme) and not the name of a table."""
    return "/" in table or bool(_SCHEME.match(table))


def has_scheme(path: str) -> bool:
    """Whether this is a URI, such as ``s3://bucket/folder`` or ``file:/tmp/x``."""
    return bool(_SCHEME.match(path))


def absolute(table: str) -> str:
    """A local path made absolute, everything else as it is."""
    if not is_path(table) or has_scheme(table):
        return table
    return str(Path(table).expanduser().absolute())


def sql_name(table: str, *, provider: str = "delta") -> str:
    """How SQL names it: ``main.a.b`` as it is, a path as ``delta.`/path```."""
    if not is_path(table):
        return table
    quoted = absolute(table).replace("`", "``")
    return f"{provider}.`{quoted}`"
