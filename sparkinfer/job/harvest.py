"""What runs that ended badly have left: found, claimed by one run, read from where it lies, removed with the run that used it.

Where folders can be moved a rename decides between two runs that try. An object store cannot: there a run writes its own name
into the dead one's job file and looks again after a moment whose name stands there.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparkinfer.host.lineage import mark_of
from sparkinfer.job.files import files, listing, read, remove, write
from sparkinfer.model.lock import this_host

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_LOG = logging.getLogger(__name__)

JOB_FILE = "job.json"
#: A run on another host counts as dead when its job file is older than this.
DEAD_AFTER_S = 600.0
#: What a dead run with other settings left is kept so long.
KEEP_OTHERS_S = 7 * 24 * 3600.0
#: Between writing a name and looking whose stands there: longer than a write takes that was begun before.
_CLAIM_PAUSE_S = 2.0
_pause = time.sleep


class Harvest:
    """The folders of dead runs that this run has claimed.

    Args:
        fs: of the root.
        root: where runs on the table stage, as ``fs`` has it.
        folder: this run's own, below the root.
        own: makes this run's job file anew.
    """

    def __init__(self, fs: FileSystem, root: str, folder: str, *, own: Callable[[], dict[str, Any]]) -> None:
        self._fs = fs
        self._own = own
        self._into = f"{folder}/harvest"
        self._in_place: list[str] = []
        wanted = own()
        for entry in listing(fs, root):
            job = read(fs, f"{entry.path}/{JOB_FILE}")
            if entry.path == folder or job is None or is_alive(job):
                continue
            if all(job.get(name) == wanted[name] for name in ("config_hash", "layout")):
                if self._claim(entry.path):
                    _LOG.info("Using the answers that run %s staged before it ended.", entry.base_name)
            elif time.time() - float(job.get("beat", 0)) > KEEP_OTHERS_S:
                remove(fs, entry.path)

    def answers(self) -> list[str]:
        """Folders of answers that were completed."""
        whole = [os.path.dirname(path) for path in self._files() if os.path.basename(path) == "_SUCCESS"]  # noqa: PTH119, PTH120
        return sorted(path for path in whole if re.search(r"/answers/bucket=\d+$", path))

    def segments(self) -> list[str]:
        """Folders of segments that engines wrote."""
        pattern = re.compile(r"(.*/segments/bucket=\d+)/[^./][^/]*\.json")
        return sorted({match[1] for path in self._files() if (match := pattern.fullmatch(path))})

    def beat(self) -> None:
        """What was claimed where it lies is still this run's (or let go of with it)."""
        for folder in self._in_place:
            write(self._fs, f"{folder}/{JOB_FILE}", self._own())

    def remove(self) -> None:
        """What was claimed where it lies is used up; the rest goes with the run's own folder."""
        for folder in self._in_place:
            remove(self._fs, folder)

    def _files(self) -> list[str]:
        return [path for folder in (self._into, *self._in_place) for path in files(self._fs, folder)]

    def _claim(self, folder: str) -> bool:
        """Make a dead run's folder this one's; false where another run was faster."""
        try:
            self._fs.move(folder, f"{self._into}/{os.path.basename(folder)}")  # noqa: PTH119
        except OSError:
            job = read(self._fs, f"{folder}/{JOB_FILE}")
            return job is not None and not is_alive(job) and self._claim_in_place(folder)
        return True

    def _claim_in_place(self, folder: str) -> bool:
        own = self._own()
        try:
            write(self._fs, f"{folder}/{JOB_FILE}", own)
        except OSError as error:
            _LOG.warning("The answers that a dead run left in %s cannot be claimed: %s", folder, error)
            return False
        _pause(_CLAIM_PAUSE_S)
        found = read(self._fs, f"{folder}/{JOB_FILE}") or {}
        if found.get("run_id") != own["run_id"]:
            return False
        self._in_place.append(folder)
        return True


def is_alive(job: dict[str, Any]) -> bool:
    """Whether the run of a job file may still be working."""
    if job.get("state") == "released":
        return False
    if job.get("host") == this_host():
        mark = mark_of(int(job.get("pid", 0)))
        return mark is not None and mark.started == job.get("started") and mark.is_alive()
    return time.time() - float(job.get("beat", 0)) < DEAD_AFTER_S
