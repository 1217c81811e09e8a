"""Chat messages: from a row's canonical JSON, and as plain text for models without a chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias

from sparkinfer.errors import InvalidMessages

#: ``role`` and, unless it was null, ``content``; more fields are passed on to the chat template as they are.
Message: TypeAlias = dict[str, object]


def parse_messages(text: str) -> list[Message]:
    """The messages of a row.

    Null fields are dropped, as transformers does, because chat templates print them as "None" or fail.

    Args:
        text: JSON list of ``{"role": ..., "content": ...}``.

    Raises:
        InvalidMessages: not such a list, empty, or a message without a role or with a content that is not text.
    """
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidMessages(f"The messages value is not JSON: {error}. Pass an array of role and content.") from error
    if not isinstance(given, list) or not given:
        raise InvalidMessages("The messages value must be a list with at least one message of role and content.")
    return [_checked(number, message) for number, message in enumerate(given, 1)]


def plain_chat(messages: Sequence[Message]) -> str:
    """Messages for a model without a chat template.

    The usual case, a system text and one user message, is the two with an empty line between; a longer conversation is lines
    ``role: content`` and then ``assistant:``.
    """
    roles = [message["role"] for message in messages]
    contents = [str(message.get("content", "")) for message in messages]
    if roles in (["user"], ["system", "user"]):
        return "\n\n".join(contents)
    return "\n".join([f"{role}: {content}" for role, content in zip(roles, contents, strict=True)] + ["assistant:"])


def _checked(number: int, message: object) -> Message:
    if not isinstance(message, dict):
        raise InvalidMessages(f"Message {number} is not an object of role and content.")
    kept = {name: value for name, value in message.items() if value is not None}
    role, content = kept.get("role"), kept.get("content", "")
    if not isinstance(role, str) or not role:
        raise InvalidMessages(f"Message {number} has no role; use system, user or assistant.")
    if not isinstance(content, str):
        raise InvalidMessages(f"Message {number} has a content that is not text; only text is taken.")
    return kept
