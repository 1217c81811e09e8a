"""Answers already given on this executor: the newest in memory, all of them in a file of its local folder.

The file is written through, so that an engine that is killed and started again still knows what it answered. A full disk
makes the memo forgetful (a warning says so), never the job.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from sparkinfer.host.frames import completion_of, completion_record
from sparkinfer.types import Completion

_LOG = logging.getLogger(__name__)
#: Bytes that a completion without texts takes in memory, about.
_EMPTY_SIZE = 700


class Memo:
    """Completions by key; thread-safe.

    Args:
        path: the file, or None for memory only (then the oldest are forgotten beyond the bound).
        memory_bytes: bound of what is held in memory.
    """

    def __init__(self, path: Path | None, *, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._held: OrderedDict[bytes, tuple[Completion, int]] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._file = None if path is None else _open(path)

    def get(self, key: bytes) -> Completion | None:
        """The stored completion, or None."""
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._held.move_to_end(key)
                return held[0]
            completion = self._read(key)
            if completion is not None:
                self._hold(key, completion)
            return completion

    def put(self, answers: Sequence[tuple[bytes, Completion]]) -> None:
        """Store completions; a later one of the same key is not written over the first."""
        with self._lock:
            for key, completion in answers:
                self._hold(key, completion)
            self._write(answers)

    @property
    def held_bytes(self) -> int:
        """Estimated bytes in memory."""
        return self._held_bytes

    def close(self) -> None:
        """Close the file; it stays where it is."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _hold(self, key: bytes, completion: Completion) -> None:
        if key in self._held:
            return
        size = _size(completion)
        self._held[key] = (completion, size)
        self._held_bytes += size
        while self._held_bytes > self._memory_bytes and len(self._held) > 1:
            _, (_, dropped) = self._held.popitem(last=False)
            self._held_bytes -= dropped

    def _read(self, key: bytes) -> Completion | None:
        if self._file is None:
            return None
        try:
            found = self._file.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self._give_up(error)
            return None
        return None if found is None else completion_of(json.loads(found[0]))

    def _write(self, answers: Sequence[tuple[bytes, Completion]]) -> None:
        if self._file is None or not answers:
            return
        rows = [(key, json.dumps(completion_record(completion))) for key, completion in answers]
        try:
            with self._file:
                self._file.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)
        except sqlite3.Error as error:
            self._give_up(error)

    def _give_up(self, error: sqlite3.Error) -> None:
        _LOG.warning(
            "The memo's file cannot be used any more (%s); answers beyond %d bytes will be forgotten and may be paid twice. "
            "Free space in the executor's local folder.",
            error,
            self._memory_bytes,
        )
        if self._file is not None:
            self._file.close()
            self._file = None


def _open(path: Path) -> sqlite3.Connection | None:
    """The file with its table; a broken one (killed half-way) is begun anew."""
    for attempt in range(2):
        try:
            file = sqlite3.connect(path, check_same_thread=False)
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("PRAGMA synchronous = OFF")  # it need not outlive the machine, only the process
            file.execute(
                "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID"
            )
            file.commit()
        except sqlite3.Error as error:
            _LOG.warning(
                "The memo's file %s cannot be opened (%s); %s.",
                path,
                error,
                "begun anew" if attempt == 0 else "left out",
            )
            for leftover in path.parent.glob(path.name + "*"):
                leftover.unlink(missing_ok=True)
        else:
            return file
    return None


def _size(completion: Completion) -> int:
    texts = (completion.result, completion.raw_text, completion.error_message, *completion.warnings)
    return _EMPTY_SIZE + sum(len(text) * 2 for text in texts if text) + 32 * len(completion.logprobs or ())
