"""Live counters of a job, left as a small JSON file a second where the driver can read them."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sparkinfer.types import Usage

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """What one job (one progress folder) got from this engine process so far; tokens are those really worked on."""

    rows_done: int = 0
    rows_failed: int = 0
    memo_hits: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def pay(self, usage: Usage) -> None:
        """Count the tokens of one distinct input; its twins and later memo hits cost none."""
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.completion_tokens += usage.completion_tokens


class ProgressFiles:
    """One file a job and engine process, replaced as a whole so that a reader never sees half of one.

    Args:
        name: the file's name without its end; unique among the engines that write into one folder.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tallies: dict[str | None, Tally] = {}
        self._clients: Counter[str] = Counter()
        self._broken: set[str] = set()
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # never taken together with the other: a mounted folder may hang for ever

    def enter(self, folder: str | None) -> Tally:
        """A client of a job begins; the job's counters, shared by all its clients."""
        with self._lock:
            if folder is not None:
                self._clients[folder] += 1
            return self._tallies.setdefault(folder, Tally())

    def leave(self, folder: str | None, gauges: Mapping[str, float]) -> None:
        """A client of a job ends; the file says what it got in all."""
        if folder is None:
            return
        self._write(folder, gauges)
        with self._lock:
            self._clients[folder] -= 1

    def write(self, gauges: Mapping[str, float]) -> None:
        """Write the file of every job that has a client."""
        with self._lock:
            folders = [folder for folder, count in self._clients.items() if count > 0]
        for folder in folders:
            self._write(folder, gauges)

    def _write(self, folder: str, gauges: Mapping[str, float]) -> None:
        with self._writing:
            try:
                self._replace(Path(folder), {**asdict(self._tallies[folder]), **gauges})
            except Exception as error:  # of a store that is mounted, anything may come
                if folder not in self._broken:  # said once; the job does not depend on it
                    _LOG.warning("Live progress cannot be written into %s: %s.", folder, error)
                self._broken.add(folder)

    def _replace(self, folder: Path, values: Mapping[str, float]) -> None:
        fresh = folder / f".{self._name}.new"
        fresh.write_text(json.dumps(values), encoding="utf-8")
        fresh.replace(folder / f"{self._name}.json")
