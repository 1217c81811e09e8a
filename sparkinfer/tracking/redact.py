"""Takes secrets out of what goes into a tracking store: by the name of a setting and by the looks of a value."""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "***"

#: ``token`` only at the end, so that max_tokens and prompt_tokens stay readable.
_SECRET_NAME = re.compile(
    r"(secret|passw(or)?d|credential|api[_.-]?key|access[_.-]?key|account[_.-]?key|private[_.-]?key|authorization"
    r"|signature|(^|[_.-])(token|sas|pwd)$)",
    re.IGNORECASE,
)
#: user:password@ of a URI; the user's name goes with it.
_USERINFO = re.compile(r"(?<=://)[^/@\s?#]+:[^/@\s?#]*@")
#: ?sig=..., &token=... and the like, as pre-signed links carry them.
_QUERY_SECRET = re.compile(
    r"(?<=[?&])((?:sig|signature|token|access_token|api_?key|key|password|secret|x-amz-signature|x-amz-credential"
    r"|x-amz-security-token|x-goog-signature)=)[^&#\s\"']+",
    re.IGNORECASE,
)
#: Tokens that tell by their first letters whose they are.
_KNOWN_TOKEN = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|dapi[0-9a-f]{30,}(-\d)?|gh[pousr]_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16})\b"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{16,}")


def redact_text(text: str) -> str:
    """The text with credentials of URIs, pre-signed links and well-known tokens masked."""
    text = _USERINFO.sub(f"{MASK}@", text)
    text = _QUERY_SECRET.sub(rf"\1{MASK}", text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    return _KNOWN_TOKEN.sub(MASK, text)


def redact(values: Mapping[str, str]) -> dict[str, str]:
    """The settings with every secret masked, whether its name or its value gives it away."""
    return {name: MASK if _SECRET_NAME.search(name) else redact_text(value) for name, value in values.items()}
