"""From what the model wrote to the result's type. STRING only: the text as it is, made safe for Arrow and Delta."""

from __future__ import annotations

import re

from sparkinfer.text.detokenize import REPLACEMENT

INVALID_OUTPUT_TEXT = "INVALID_OUTPUT_TEXT"

_UNSAFE = re.compile("[\x00\ud800-\udfff]")


def parse_string(text: str) -> tuple[str, tuple[str, ...]]:
    """The text with NUL and lone surrogates replaced by U+FFFD, and the warning INVALID_OUTPUT_TEXT where it holds any."""
    safe = _UNSAFE.sub(REPLACEMENT, text)
    return safe, ((INVALID_OUTPUT_TEXT,) if REPLACEMENT in safe else ())


def clean_input(text: str) -> str:
    """A row's text as tokenizers take it: lone surrogates (from JSON escapes) replaced by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
