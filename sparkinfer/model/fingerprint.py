"""What a model is, as one SHA-256: over its weights, config, tokenizer, chat template and generation config.

Weights are hashed once: their digests are kept in the user's cache under path, size, modification time and inode, and a
file of the hub's cache carries its SHA-256 as its name. A second look at a 30 GB model reads no weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sparkinfer.model.cache import cache_root

#: Beside the weights, what can change an answer.
SIDE_FILES = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|chat_template|tekken"
    r"|preprocessor_config|processor_config)\.json|merges\.txt|vocab\.txt|tokenizer\.model|spiece\.model|.*\.jinja|.*\.py"
)
_BLOB = re.compile(r"[0-9a-f]{64}")
_REMEMBER_FROM = 1 << 20  # smaller files are hashed faster than looked up


def of_folder(folder: Path, weights: Iterable[Path]) -> str:
    """Fingerprint of a model folder.

    Args:
        folder: holds the side files.
        weights: the weight files.
    """
    sides = [path for path in folder.iterdir() if path.is_file() and SIDE_FILES.fullmatch(path.name)]
    sides += [path for path in folder.glob("additional_chat_templates/*.jinja") if path.is_file()]
    paths = sorted({*sides, *weights, *folder.glob("*.safetensors.index.json")})
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashing releases the interpreter's lock
        digests = list(pool.map(of_file, paths))
    return combine({str(path.relative_to(folder)): digest for path, digest in zip(paths, digests, strict=True)})


def combine(parts: dict[str, str]) -> str:
    """One SHA-256 over named digests; their order does not matter."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def of_file(path: Path) -> str:
    """SHA-256 of one file, remembered for large ones."""
    real = path.resolve()
    if real.parent.name == "blobs" and _BLOB.fullmatch(real.name):
        return real.name
    stat = real.stat()
    if stat.st_size < _REMEMBER_FROM:
        return hash_file(real)
    identity = [str(real), stat.st_size, stat.st_mtime_ns, stat.st_ino]
    memory = cache_root() / "digests" / (hashlib.sha256(str(real).encode()).hexdigest()[:32] + ".json")
    known = _recall(memory, identity)
    if known is not None:
        return known
    digest = hash_file(real)
    _remember(memory, identity, digest)
    return digest


def hash_file(path: Path) -> str:
    """SHA-256 of one file's bytes, read now."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _recall(memory: Path, identity: list[object]) -> str | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(memory.read_text())
        if kept["identity"] == identity and _BLOB.fullmatch(kept["sha256"]):
            return str(kept["sha256"])
    return None


def _remember(memory: Path, identity: list[object], digest: str) -> None:
    """Best effort: without a writable cache the file is hashed again next time."""
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=memory.parent)
        with os.fdopen(handle, "w") as file:
            json.dump({"identity": identity, "sha256": digest}, file)
        Path(part).replace(memory)
