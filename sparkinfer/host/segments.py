"""A job's finished rows, on disk seconds after they are done: what a kill of everything at once cannot take away.

Spark keeps a task's answers only when the whole task has ended, and the memo lives as long as its executor. So each engine
also writes what it has finished into the job's folder, as segments: files of JSON lines that are replaced whole. The next run
of the job reads them before it asks (:mod:`sparkinfer.job.answers`), and so does an engine that gets the rows of an executor
that was lost. A line has the columns of the result table and ends with ``whole``, which a torn line lacks.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sparkinfer.host.frames import completion_of, completion_record
from sparkinfer.host.segment_folder import SegmentFolder, open_folder
from sparkinfer.types import Completion, ModelRef

_LOG = logging.getLogger(__name__)
#: Seconds from the first row that is done until it is written; with a slow disk's own time it stays below 5.
FLUSH_S = 2.0
#: Bytes after which a segment is left as it is and the next one begun.
SEGMENT_BYTES = 1024 * 1024
#: Bytes that are kept for a folder that cannot be written just now.
_MAX_UNWRITTEN = 16 * 1024 * 1024
_WHOLE = "whole"


@dataclass(slots=True)
class _Open:
    """One folder that is being written.

    Attributes:
        clients: sessions that write into it.
        written: bytes of the segment that is still growing.
        unwritten: bytes to come.
        number: of that segment.
        seen: segments of other engines that were read, with their sizes.
    """

    folder: SegmentFolder
    clients: int = 0
    written: bytes = b""
    unwritten: bytearray = field(default_factory=bytearray)
    number: int = 0
    is_broken: bool = False
    seen: dict[str, int] = field(default_factory=dict)


class Segments:
    """What one engine writes; thread-safe.

    Args:
        name: begins the files' names; unique among the engines that write into one folder, also those before this one.
        model: named in each line.
        flush_s: how long finished rows are gathered.
    """

    def __init__(self, name: str, model: ModelRef, *, flush_s: float = FLUSH_S) -> None:
        self._name = name
        self._constant = {"model_name": model.name, "model_version": model.version}
        self._flush_s = flush_s
        self._open: dict[str, _Open] = {}
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._filled = threading.Event()
        self._end = threading.Event()

    def start(self) -> None:
        """Write in a thread of its own from now on."""
        threading.Thread(target=self._flush_all, name="segments", daemon=True).start()

    def enter(self, uri: str | None) -> None:
        """A session begins that writes into this folder."""
        if uri is None:
            return
        with self._lock:
            folder = self._open[uri].folder if uri in self._open else None
        if folder is None:
            folder = _opened(uri)  # as slow as the storage is: nobody else waits for it
        if folder is None:
            return
        with self._lock:
            self._open.setdefault(uri, _Open(folder)).clients += 1

    def leave(self, uri: str | None) -> None:
        """A session has ended; after the last one the folder is closed, once everything is written."""
        with self._lock:
            if uri in self._open:
                self._open[uri].clients -= 1
        self._filled.set()

    def add(self, uri: str | None, config_hash: str, completions: Sequence[Completion]) -> None:
        """Rows that are done; they are written within seconds."""
        if uri is None:
            return
        lines = b"".join(self._line(completion, config_hash) for completion in completions)
        with self._lock:
            opened = self._open.get(uri)
            if opened is not None and len(opened.unwritten) + len(lines) <= _MAX_UNWRITTEN:
                opened.unwritten += lines
        self._filled.set()

    def of_others(self, uri: str | None, config_hash: str) -> list[Completion]:
        """What other engines have put down there since the last look: one of them may be lost, and its rows come here."""
        with self._lock:
            opened = None if uri is None else self._open.get(uri)
        if opened is None:
            return []
        found: list[Completion] = []
        try:
            for name, size in opened.folder.files().items():
                if not name.startswith(self._name) and opened.seen.get(name) != size:
                    found += read_segment(opened.folder.read(name), config_hash)
                    opened.seen[name] = size
        except (OSError, ValueError) as error:  # Arrow's own errors are ValueErrors
            _LOG.info("The segments in %s cannot be read just now: %s.", uri, error)
        return found

    def flush(self) -> None:
        """Write what is there."""
        with self._flushing:
            with self._lock:
                folders = list(self._open.items())
            for uri, opened in folders:
                self._write(uri, opened)

    def close(self) -> None:
        """Write what is there and end the thread."""
        self._end.set()
        self._filled.set()
        self.flush()

    def _flush_all(self) -> None:
        while not self._end.is_set():
            self._filled.wait()
            self._end.wait(self._flush_s)
            self._filled.clear()
            self.flush()

    def _write(self, uri: str, opened: _Open) -> None:
        with self._lock:
            fresh = bytes(opened.unwritten)
            opened.unwritten.clear()
            is_last = opened.clients <= 0
        if fresh:
            self._write_segment(uri, opened, fresh)
        with self._lock:
            if is_last and opened.clients <= 0 and not opened.unwritten and self._open.get(uri) is opened:
                del self._open[uri]

    def _write_segment(self, uri: str, opened: _Open, fresh: bytes) -> None:
        content = opened.written + fresh
        try:
            opened.folder.write(f"{self._name}-{opened.number:05d}.json", content)
        except FileNotFoundError:
            return  # the job is done and has removed its folder
        except Exception as error:
            # Of a store, anything may come; the thread must live, or all folders lose their rows.
            if not opened.is_broken:  # said once; the job does not depend on it
                _LOG.warning("Answers cannot be put down in %s: %s. A lost executor may cost them again.", uri, error)
            opened.is_broken = True
            with self._lock:
                opened.unwritten[:0] = fresh
            return
        opened.is_broken = False
        is_full = len(content) >= SEGMENT_BYTES
        opened.written = b"" if is_full else content
        opened.number += is_full

    def _line(self, completion: Completion, config_hash: str) -> bytes:
        record = completion_record(completion)
        del record["row"]  # the client's own number
        record["details"] = dict(completion.details)
        line = json.dumps({**record, **self._constant, "config_hash": config_hash, _WHOLE: True}, ensure_ascii=False)
        return line.encode("utf-8", "replace") + b"\n"


def _opened(uri: str) -> SegmentFolder | None:
    """The folder behind a path or URI; None, and a word in the log, where it cannot be had."""
    try:
        folder = open_folder(uri)
        if not folder.exists():
            _LOG.warning(
                "The job's folder %s is not there on this executor, so answers are safe only when their task has ended; "
                "name staging= on storage that driver and executors share.",
                uri,
            )
    except (OSError, ValueError) as error:
        _LOG.warning("Answers cannot be put down in %s: %s.", uri, error)
        return None
    return folder


def read_segment(content: bytes, config_hash: str) -> Iterator[Completion]:
    """The completions of a segment under a configuration; what is torn is left out."""
    for line in content.splitlines():
        try:
            record = json.loads(line)
            if not record.pop(_WHOLE) or record.pop("config_hash") != config_hash:
                continue
            del record["model_name"], record["model_version"]
            yield completion_of({**record, "row": 0, "details": json.dumps(record["details"])})
        except (ValueError, KeyError, TypeError):
            continue
