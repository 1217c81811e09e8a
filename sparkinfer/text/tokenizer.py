"""What the text layer needs of a tokenizer, and the byte tokenizer that needs no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from sparkinfer.text.messages import Message

FIRST_BYTE_ID = 3


class Tokenizer(Protocol):
    """Text to ids and back. Thread-safe.

    Attributes:
        stop_ids: every id that ends an answer.
        control_tokens: texts that :meth:`encode` turns into control ids, such as ``<|im_end|>``.
        has_chat_template: whether :meth:`chat` writes the model's own markup; if not, prompts are plain text.
        takes_system: whether the chat template has a place for a system message.
    """

    stop_ids: frozenset[int]
    control_tokens: frozenset[str]
    has_chat_template: bool
    takes_system: bool

    def encode(self, text: str, *, bos: bool = False, control: bool = True) -> list[int]:
        """Ids of a text.

        Args:
            text: no lone surrogates.
            bos: begin with what the tokenizer begins a plain text with (never doubled).
            control: whether control tokens written out in the text become control ids, or are read as plain text.
        """

    def token_starts(self, text: str) -> list[int]:
        """For each token of the text the index of the character where it begins, ascending."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; control tokens are left out, broken bytes become U+FFFD."""

    def chat(self, messages: Sequence[Message], *, clock: str, template_kwargs: Mapping[str, Any]) -> str:
        """The messages in the model's markup, ending where the assistant's answer begins.

        Raises:
            InvalidMessages: the chat template refuses them.
        """


class ByteTokenizer:
    """Byte b is id b + 3; 0 pad, 1 bos, 2 eos. The fake engine speaks it, and tests of the text layer."""

    stop_ids = frozenset({2})
    control_tokens = frozenset[str]()
    has_chat_template = True
    takes_system = True

    def encode(self, text: str, *, bos: bool = False, control: bool = True) -> list[int]:
        """One id a UTF-8 byte, after id 1 where ``bos``."""
        ids = [byte + FIRST_BYTE_ID for byte in text.encode("utf-8", "replace")]
        return [1, *ids] if bos else ids

    def token_starts(self, text: str) -> list[int]:
        """The character that each byte belongs to."""
        return [index for index, char in enumerate(text) for _ in char.encode("utf-8", "replace")]

    def decode(self, ids: Sequence[int]) -> str:
        """The bytes of the ids as UTF-8, broken ones as U+FFFD."""
        return bytes(i - FIRST_BYTE_ID for i in ids if i >= FIRST_BYTE_ID).decode("utf-8", "replace")

    def chat(self, messages: Sequence[Message], *, clock: str, template_kwargs: Mapping[str, Any]) -> str:
        """Lines ``role: content``, then ``assistant:``."""
        lines = [f"{message['role']}: {message.get('content', '')}" for message in messages]
        return "\n".join([*lines, "assistant:"])


def load_tokenizer(folder: Path | None, *, trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer of a model folder; the byte tokenizer where there is none (the fake model).

    Raises:
        ModelIncomplete: the folder holds no tokenizer that can be loaded.
    """
    if folder is None:
        return ByteTokenizer()
    from sparkinfer.text.hf_tokenizer import HfTokenizer

    return HfTokenizer(folder, trust_remote_code=trust_remote_code)
