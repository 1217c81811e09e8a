"""Trying a network call again: rate limits, server errors and broken connections pass, everything else is told at once."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from sparkinfer.errors import DownloadFailed

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

ATTEMPTS = 6
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0
_PASSING = {408, 425, 429, 500, 502, 503, 504}


def retrying(call: Callable[[], T], *, what: str) -> T:
    """The result of ``call``, tried up to six times with growing pauses (or the pause that the server asks for).

    Args:
        call: may be called again after it failed.
        what: for the message, e.g. ``the file list of org/name``.

    Raises:
        DownloadFailed: it failed every time in a way that may pass. Other exceptions pass through at once.
    """
    pause = _FIRST_PAUSE_S
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return call()
        except Exception as error:
            if not is_passing(error):
                raise
            if attempt == ATTEMPTS:
                raise DownloadFailed(
                    f"{what} could not be had in {ATTEMPTS} attempts ({type(error).__name__}: {first_line(error)}); check the network "
                    "and HF_ENDPOINT, or name a folder that is already here."
                ) from error
            wait = min(_LONGEST_PAUSE_S, max(asked_pause(error), pause * random.uniform(0.8, 1.2)))
            _LOG.warning("%s: %s; attempt %d of %d in %.1f s", what, type(error).__name__, attempt + 1, ATTEMPTS, wait)
            time.sleep(wait)
            pause *= 2
    raise AssertionError("unreachable: the last attempt raised or returned")


def is_passing(error: BaseException) -> bool:
    """Whether trying again can help: rate limits, server errors, connections that broke or timed out."""
    status = status_of(error)
    if status is not None:
        return status in _PASSING
    # huggingface_hub's HTTP client has changed its name between versions; its base class has not.
    return isinstance(error, ConnectionError | TimeoutError) or any(
        c.__name__ == "TransportError" for c in type(error).__mro__
    )


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an exception carries."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def asked_pause(error: BaseException) -> float:
    """Seconds of a ``Retry-After`` header; 0 where there is none."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    text = str(headers.get("Retry-After", "0"))
    return float(text) if text.isdigit() else 0.0


def first_line(error: BaseException) -> str:
    """The first line of an exception's text."""
    return (str(error).splitlines() or ["no text"])[0]
