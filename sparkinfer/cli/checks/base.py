"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """How much a finding matters."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    Attributes:
        name: the subject, one or two words.
        level: ok, warn (works, but not well or not always) or fail (jobs will not run).
        detail: what was found.
        fix: what to do about it; empty where all is well.
    """

    name: str
    level: Level
    detail: str
    fix: str = ""


def ok(name: str, detail: str) -> Check:
    """All is well."""
    return Check(name, Level.OK, detail)


def warn(name: str, detail: str, fix: str) -> Check:
    """It works, but not well or not always."""
    return Check(name, Level.WARN, detail, fix)


def fail(name: str, detail: str, fix: str) -> Check:
    """Jobs will not run."""
    return Check(name, Level.FAIL, detail, fix)


def size(count: float) -> str:
    """Bytes for people, in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
