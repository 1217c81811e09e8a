"""Lengths of time as people write them: ``2h``, ``90m``, ``1h30m``, or seconds as a number."""

from __future__ import annotations

import math
import re

from sparkinfer.errors import InvalidConfig

_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")


def seconds_of(value: str | float, *, name: str) -> float:
    """The seconds of a length of time.

    Args:
        value: ``2h``, ``90m``, ``45s``, ``1h30m``, ``1d``; or seconds as a number.
        name: of the setting, for the message.

    Raises:
        InvalidConfig: it cannot be read, or no time is left in it.
    """
    seconds = _read(value)
    if seconds is None:
        raise InvalidConfig(
            f"{name} must be a length of time such as 2h, 90m, 45s or seconds as a number, not {value!r}."
        )
    if not 0 < seconds < math.inf:
        raise InvalidConfig(f"{name} must lie ahead; {value!r} has passed before the job begins.")
    return seconds


def _read(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return None if math.isnan(value) or value == math.inf else float(value)
    text = re.sub(r"\s+", "", value.lower()) if isinstance(value, str) else ""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
