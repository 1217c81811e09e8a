"""Live counters of a job, left as a small JSON file a second where the driver can read them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """What one job (one progress folder) got from this engine process so far."""

    rows_done: int = 0
    rows_failed: int = 0
    memo_hits: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class ProgressFiles:
    """One file a job and engine process, replaced as a whole so that a reader never sees half of one.

    Args:
        name: the file's name without its end; unique among the engines that write into one folder.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tallies: dict[str | None, Tally] = {}
        self._lock = threading.Lock()

    def tally(self, folder: str | None) -> Tally:
        """The counters of a job, shared by its clients."""
        with self._lock:
            return self._tallies.setdefault(folder, Tally())

    def write(self, gauges: Mapping[str, float]) -> None:
        """Write every job's file; a folder that is gone or full is said in the log once and left out from then on."""
        with self._lock:
            folders = [folder for folder in self._tallies if folder is not None]
        for folder in folders:
            try:
                self._replace(Path(folder), {**asdict(self._tallies[folder]), **gauges})
            except OSError as error:
                _LOG.warning("Live progress is not written into %s any more: %s.", folder, error)
                with self._lock:
                    self._tallies.pop(folder, None)

    def _replace(self, folder: Path, values: Mapping[str, float]) -> None:
        fresh = folder / f".{self._name}.new"
        fresh.write_text(json.dumps(values), encoding="utf-8")
        fresh.replace(folder / f"{self._name}.json")
