"""What the text layer needs of a tokenizer, and the byte tokenizer that needs no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

FIRST_BYTE_ID = 3


class Tokenizer(Protocol):
    """Text to ids and back. Thread-safe: the text thread and callers may use one at once.

    Attributes:
        bos_id: id that begins a prompt, or None.
        eos_id: id that ends an answer, or None.
        stop_ids: every id that ends an answer (generation_config may name several).
        has_chat_template: whether :meth:`chat` knows the model's own markup.
    """

    bos_id: int | None
    eos_id: int | None
    stop_ids: frozenset[int]
    has_chat_template: bool

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, without bos and eos."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens are left out, broken bytes become U+FFFD."""

    def chat(self, messages: Sequence[Mapping[str, Any]], *, clock: str, template_kwargs: Mapping[str, Any]) -> str:
        """The messages in the model's markup, ending where the assistant's answer begins."""


class ByteTokenizer:
    """Byte b is id b + 3; 0 pad, 1 bos, 2 eos. The fake engine speaks it, and tests of the text layer."""

    bos_id: int | None = 1
    eos_id: int | None = 2
    stop_ids: frozenset[int] = frozenset({2})
    has_chat_template = True

    def encode(self, text: str) -> list[int]:
        """One id a UTF-8 byte."""
        return [byte + FIRST_BYTE_ID for byte in text.encode("utf-8", "replace")]

    def decode(self, ids: Sequence[int]) -> str:
        """The bytes of the ids as UTF-8, broken ones as U+FFFD."""
        return bytes(i - FIRST_BYTE_ID for i in ids if i >= FIRST_BYTE_ID).decode("utf-8", "replace")

    def chat(self, messages: Sequence[Mapping[str, Any]], *, clock: str, template_kwargs: Mapping[str, Any]) -> str:
        """Lines ``role: content``, then ``assistant:``."""
        lines = [f"{message['role']}: {message['content']}" for message in messages]
        return "\n".join([*lines, "assistant:"])


def load_tokenizer(folder: Path | None) -> Tokenizer:
    """The tokenizer of a model folder; the byte tokenizer where there is no folder (the fake model)."""
    if folder is None:
        return ByteTokenizer()
    raise NotImplementedError
