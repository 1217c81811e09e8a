"""Which rows are being run, written before each batch: whoever starts after a death reads its suspects here.

A small mapped file: the kernel keeps it when the process is killed, and writing costs microseconds.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Bytes of a row's digest in the file.
DIGEST = 16
#: Rows that the file has room for; of larger batches the first ones are written.
CAPACITY = 8192
_HEADER = struct.Struct("<IIQ")  # rows running, whether they were on trial, rows finished since the start
_SIZE = _HEADER.size + CAPACITY * DIGEST


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """What stood in the journal.

    Attributes:
        running: digests of the rows of the batch being run, in its order.
        on_trial: whether they ran apart from all others because an earlier death made them suspect.
        finished: rows that the process had finished.
    """

    running: tuple[bytes, ...]
    on_trial: bool
    finished: int


class Journal:
    """Writer's side; one thread.

    Raises:
        OSError: there is no room for the file.
    """

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, _SIZE)  # a page that finds the disk full later would kill the process
            self._map = mmap.mmap(file.fileno(), 0)

    def write(self, running: Sequence[bytes], *, on_trial: bool, finished: int) -> None:
        """Put down what runs next."""
        kept = running[:CAPACITY]
        body = b"".join(kept)
        self._map[_HEADER.size : _HEADER.size + len(body)] = body
        self._map[: _HEADER.size] = _HEADER.pack(len(kept), on_trial, finished)

    def close(self) -> None:
        """Let the file go."""
        self._map.close()


def read_journal(path: Path) -> JournalRecord | None:
    """What a process left that ended without removing its journal; None where there is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _HEADER.size:
        return JournalRecord((), False, 0)
    count, on_trial, finished = _HEADER.unpack_from(data)
    body = data[_HEADER.size : _HEADER.size + count * DIGEST]
    running = tuple(body[i : i + DIGEST] for i in range(0, len(body), DIGEST))
    return JournalRecord(running, bool(on_trial), finished)
