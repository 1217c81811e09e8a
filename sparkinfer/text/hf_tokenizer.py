"""A model folder's tokenizer, as transformers loads it.

AutoTokenizer decides which tokenizer it is (several classes rewrite what ``tokenizer.json`` says, so reading that file alone
would be quicker to start and wrong); the work is then done on its Rust backend, which keeps no state between calls and so can
be called from several threads. The few tokenizers without one run behind a lock.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkinfer.errors import ModelIncomplete
from sparkinfer.text.chat import ChatTemplate
from sparkinfer.text.messages import Message, plain_chat


class HfTokenizer:
    """Implements :class:`sparkinfer.text.tokenizer.Tokenizer` over a model folder.

    Args:
        folder: what ``from_pretrained`` reads.
        trust_remote_code: run tokenizer code that comes with the model.

    Raises:
        ModelIncomplete: no tokenizer there, or files of it are missing or broken.
        UnsupportedModel: the chat template does not compile.
    """

    def __init__(self, folder: Path, *, trust_remote_code: bool = False) -> None:
        self._tokenizer = _load(folder, trust_remote_code=trust_remote_code)
        self._backend = _stateless_backend(self._tokenizer)
        self._plain_backend = _plain_backend(self._tokenizer)
        self._lock = threading.Lock()
        self._chat = _chat_template(self._tokenizer)
        self._bos_text: str | None = self._tokenizer.bos_token
        self._end_ids = self._num_end_ids()
        self.control_tokens = _control_tokens(self._tokenizer)
        self.stop_ids = _stop_ids(folder, self._tokenizer.eos_token_id)
        self.has_chat_template = self._chat is not None
        self.takes_system = self._chat is not None and self._chat.takes_system()

    def encode(self, text: str, *, bos: bool = False, control: bool = True) -> list[int]:
        """Ids of a text; see the protocol."""
        ids = self._ids(text, special=bos, control=control)
        if bos:
            ids = ids[: len(ids) - self._end_ids]
            if self._bos_text and text.startswith(self._bos_text) and len(ids) > 1 and ids[0] == ids[1]:
                return ids[1:]  # written out by the caller and added by the tokenizer
        return ids

    def token_starts(self, text: str) -> list[int]:
        """Where each token begins; evenly spread where the tokenizer cannot say."""
        if self._backend is not None:
            return [start for start, _ in self._backend.encode(text, add_special_tokens=False).offsets]
        count = len(self.encode(text))
        return [index * len(text) // count for index in range(count)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; see the protocol. Never "cleaned up": spaces stay where the model put them."""
        if self._backend is not None:
            return str(self._backend.decode(list(ids), skip_special_tokens=True))
        with self._lock:
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def chat(self, messages: Sequence[Message], *, clock: str, template_kwargs: Mapping[str, Any]) -> str:
        """The messages in the model's markup, or as plain text where it has none."""
        if self._chat is None:
            return plain_chat(messages)
        return self._chat.render(messages, clock=clock, template_kwargs=template_kwargs)

    def _ids(self, text: str, *, special: bool, control: bool) -> list[int]:
        backend = self._backend if control else self._plain_backend
        if backend is not None:
            return list(backend.encode(text, add_special_tokens=special).ids)
        with self._lock:
            return list(self._tokenizer.encode(text, add_special_tokens=special, split_special_tokens=not control))

    def _num_end_ids(self) -> int:
        """How many ids the tokenizer puts behind a text (eos, sep); a prompt has to stay open, so they are taken off again."""
        plain, full = (self._ids("x", special=special, control=True) for special in (False, True))
        ends = (n for n in range(len(full)) if full[: len(full) - n][-len(plain) :] == plain)
        return next(ends, 0)


def _load(folder: Path, *, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers raises anything from OSError to a bare Exception of the Rust side
        raise ModelIncomplete(
            f"No tokenizer can be loaded from {folder}: {error} Put tokenizer.json and tokenizer_config.json there."
        ) from error


def _stateless_backend(tokenizer: Any) -> Any | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    return backend


def _plain_backend(tokenizer: Any) -> Any | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    from tokenizers import Tokenizer as RustTokenizer

    plain = RustTokenizer.from_str(backend.to_str())
    plain.encode_special_tokens = True
    return plain


def _control_tokens(tokenizer: Any) -> frozenset[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(str(token.content) for token in added.values() if token.special and token.content)


def _chat_template(tokenizer: Any) -> ChatTemplate | None:
    source = getattr(tokenizer, "chat_template", None)
    if isinstance(source, Mapping):
        source = source.get("default")
    if not source:
        return None
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return ChatTemplate(source, special_tokens=special)


def _stop_ids(folder: Path, eos_id: int | None) -> frozenset[int]:
    """Ids that end an answer: the tokenizer's and those of generation_config.json (else config.json)."""
    found = {eos_id} if eos_id is not None else set()
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        ids = json.loads(path.read_text("utf-8")).get("eos_token_id") if path.is_file() else None
        if ids is not None:
            found.update(ids if isinstance(ids, list) else [ids])
            break
    return frozenset(int(i) for i in found)
