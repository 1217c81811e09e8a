"""The staging folder of one run: what is pending, what was answered, what is ready to be committed.

    <root>/<run id>/
        job.json                    whose it is and whether he lives: host, pid, start of the process, config_hash
        pending/bucket=N/           rows that need an answer
        segments/bucket=N/          answers as the engines finish them, written every few seconds
        answers/bucket=N/           answers of the distinct inputs, written as tasks end
        rows-K/bucket=N/            rows ready to be committed (K: how often they were compared with the table anew)
        cached/bucket=N/            answers to pending inputs that the answers table has
        doubles-K/bucket=N/         rows of the table that are superseded: two jobs wrote their key at once
        harvest/<dead run id>/      what an earlier run left that did not end well
        progress/                   live counters of the engine processes

The root of a path table is ``<table>/_sparkinfer``: Delta's readers and VACUUM leave folders with an underscore alone.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparkinfer.errors import SparkInferError
from sparkinfer.host.lineage import mark_of, own_mark
from sparkinfer.model.lock import this_host
from sparkinfer.sink.faults import job_error
from sparkinfer.sink.location import absolute, is_path

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)

FOLDER = "_sparkinfer"
JOB_FILE = "job.json"
#: Raised when staged answers of an older sparkinfer cannot be read any more.
LAYOUT = 1
#: A run on another host counts as dead when its job file is older than this.
DEAD_AFTER_S = 600.0
#: What a dead run with other settings left is kept so long.
KEEP_OTHERS_S = 7 * 24 * 3600.0
_REMOVALS = 3
_REMOVAL_PAUSE_S = 0.1


def staging_root(spark: SparkSession, *, table: str, staging: str | None) -> str:
    """Where runs on a table stage.

    Args:
        table: the result table.
        staging: what the user named, or None.
    """
    name = hashlib.sha256(absolute(table).encode()).hexdigest()[:12]
    if staging is not None:
        return f"{absolute(staging).rstrip('/')}/{FOLDER}-{name}"
    if is_path(table):
        return f"{absolute(table).rstrip('/')}/{FOLDER}"
    scratch = spark.conf.get("spark.local.dir", None) or tempfile.gettempdir()
    root = f"{scratch.split(',')[0].rstrip('/')}/sparkinfer-{os.getuid()}/{name}"
    _LOG.warning(
        "Staging for the table %s goes to the session's scratch folder %s; name staging= on a cluster.", table, root
    )
    return root


class Staging:
    """The folder of one run; made when it is constructed.

    Args:
        root: see :func:`staging_root`.
        run_id: names the folder.
        config_hash: whose answers; only those of the same are harvested.

    Raises:
        PermissionDenied, DiskFull: it cannot be made.
    """

    def __init__(self, root: str, *, run_id: str, config_hash: str) -> None:
        self.path = f"{root}/{run_id}"
        self._fs, self._folder = file_system(self.path)
        self._config_hash = config_hash
        self._state = "running"
        try:
            for part in ("progress", "harvest"):
                self._fs.create_dir(f"{self._folder}/{part}", recursive=True)
            self.beat()
        except OSError as error:
            raise job_error(error, table=self.path, doing="Making the staging folder") from error
        self._claim_dead(root)

    def folder(self, part: str, bucket: int | None = None) -> str:
        """Path of a part as Spark opens it."""
        return f"{self.path}/{part}" + ("" if bucket is None else f"/bucket={bucket}")

    @property
    def progress_dir(self) -> str:
        """Where engine processes leave their counters, a plain path."""
        return f"{self._folder}/progress"

    def make_segments(self, bucket: int) -> str:
        """Make the folder where engines put down what they finish of a bucket; its path or URI as Arrow opens it.

        Raises:
            PermissionDenied, DiskFull: it cannot be made.
        """
        path = self.folder("segments", bucket)
        try:
            self._fs.create_dir(f"{self._folder}/segments/bucket={bucket}", recursive=True)
        except OSError as error:
            raise job_error(error, table=path, doing="Making a folder of segments") from error
        return arrow_uri(path)

    def beat(self) -> None:
        """Say that this run lives (or has let go of its folder)."""
        own = {
            "layout": LAYOUT,
            "state": self._state,
            "host": this_host(),
            "pid": os.getpid(),
            "started": own_mark().started,
            "config_hash": self._config_hash,
            "beat": time.time(),
        }
        _write(self._fs, f"{self._folder}/{JOB_FILE}", json.dumps(own).encode())

    def harvest(self) -> list[str]:
        """Folders of answers that earlier runs completed, as Spark opens them."""
        found = _files(self._fs, f"{self._folder}/harvest")
        whole = [os.path.dirname(path) for path in found if os.path.basename(path) == "_SUCCESS"]  # noqa: PTH119, PTH120
        answers = [path for path in whole if re.search(r"/answers/bucket=\d+$", path)]
        return sorted(f"{self.path}{path.removeprefix(self._folder)}" for path in answers)

    def harvest_segments(self) -> list[str]:
        """Folders of segments that engines of earlier runs wrote, as Spark opens them."""
        found = _files(self._fs, f"{self._folder}/harvest")
        segments = {
            match[1] for path in found if (match := re.fullmatch(r"(.*/segments/bucket=\d+)/[^./][^/]*\.json", path))
        }
        return sorted(f"{self.path}{path.removeprefix(self._folder)}" for path in segments)

    def progress(self) -> list[dict[str, float]]:
        """The engine processes' counters, one dict each."""
        counters = []
        for path in _files(self._fs, self.progress_dir):
            if path.endswith(".json"):
                content = _read(self._fs, path)
                if content is not None:
                    counters.append(content)
        return counters

    def drop_bucket(self, bucket: int) -> None:
        """Forget a bucket that is committed."""
        parts = [
            i.base_name
            for i in _listing(self._fs, self._folder)
            if i.base_name.startswith(("pending", "segments", "answers", "rows", "doubles", "cached"))
        ]
        for part in parts:
            _remove(self._fs, f"{self._folder}/{part}/bucket={bucket}")

    def release(self) -> None:
        """Keep what was staged for the next run, and say so in the job file."""
        self._state = "released"
        try:
            self.beat()
        except OSError as error:
            _LOG.warning("The staging folder %s could not be marked as left: %s", self.path, error)

    def remove(self) -> None:
        """Everything of this run is committed."""
        self._state = "removed"
        _remove(self._fs, self._folder)

    def _claim_dead(self, root: str) -> None:
        """Move what dead runs left into this run's folder; a rename decides between two that try."""
        _, base = file_system(root)
        for entry in _listing(self._fs, base):
            job = _read(self._fs, f"{entry.path}/{JOB_FILE}")
            if entry.path == self._folder or job is None or is_alive(job):
                continue
            if job.get("config_hash") == self._config_hash and job.get("layout") == LAYOUT:
                try:
                    self._fs.move(entry.path, f"{self._folder}/harvest/{entry.base_name}")
                    _LOG.info("Using the answers that run %s staged before it ended.", entry.base_name)
                except OSError:
                    continue  # another run was faster
            elif time.time() - float(job.get("beat", 0)) > KEEP_OTHERS_S:
                _remove(self._fs, entry.path)


@contextmanager
def staging_of(root: str, *, run_id: str, config_hash: str) -> Iterator[Staging]:
    """The run's staging folder: removed at the end, kept for the next run where the block raises (the error says where)."""
    staging = Staging(root, run_id=run_id, config_hash=config_hash)
    try:
        yield staging
    except SparkInferError as error:
        staging.release()
        kept = f"{error.message} What was answered is kept in {staging.path}; the next run of this job uses it."
        raise type(error)(kept) from error
    except BaseException:
        staging.release()
        raise
    staging.remove()


def is_alive(job: dict[str, Any]) -> bool:
    """Whether the run of a job file may still be working."""
    if job.get("state") == "released":
        return False
    if job.get("host") == this_host():
        mark = mark_of(int(job.get("pid", 0)))
        return mark is not None and mark.started == job.get("started") and mark.is_alive()
    return time.time() - float(job.get("beat", 0)) < DEAD_AFTER_S


def file_system(path: str) -> tuple[FileSystem, str]:
    """Arrow's file system for a path or URI, and the path inside it."""
    from pyarrow.fs import FileSystem

    found: tuple[FileSystem, str] = FileSystem.from_uri(arrow_uri(path))
    return found


def arrow_uri(path: str) -> str:
    """A path or URI of Spark as Arrow takes it; ``dbfs:`` is its mount."""
    plain = re.sub(r"^dbfs:/+(?=Volumes/)", "/", path)
    plain = re.sub(r"^dbfs:/+", "/dbfs/", plain)
    plain = re.sub(r"^file:/+", "/", plain)
    return re.sub(r"^s3[an]:", "s3:", plain)


def is_missing(error: OSError) -> bool:
    """Whether a file or folder is not there."""
    return isinstance(error, FileNotFoundError) or error.errno == errno.ENOENT


def _write(fs: FileSystem, path: str, content: bytes) -> None:
    with fs.open_output_stream(f"{path}.new") as stream:
        stream.write(content)
    fs.move(f"{path}.new", path)


def _read(fs: FileSystem, path: str) -> dict[str, Any] | None:
    """A small JSON object, or None where it is not there (any more) or not whole."""
    try:
        with fs.open_input_stream(path) as stream:
            value = json.loads(stream.read())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _listing(fs: FileSystem, folder: str) -> list[Any]:
    from pyarrow.fs import FileSelector

    return list(fs.get_file_info(FileSelector(folder, allow_not_found=True)))


def _files(fs: FileSystem, folder: str) -> list[str]:
    from pyarrow.fs import FileSelector, FileType

    selected = fs.get_file_info(FileSelector(folder, allow_not_found=True, recursive=True))
    return [info.path for info in selected if info.type == FileType.File]


def _remove(fs: FileSystem, folder: str) -> None:
    for attempt in range(_REMOVALS):
        try:
            fs.delete_dir(folder)
        except OSError as error:
            if is_missing(error):
                return
            if attempt == _REMOVALS - 1:
                _LOG.warning("The staging folder %s could not be removed: %s", folder, error)
            time.sleep(_REMOVAL_PAUSE_S)  # an engine may just have put a segment or its counters down in there
        else:
            return
