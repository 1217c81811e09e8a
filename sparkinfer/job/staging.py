"""The staging folder of one run: what is pending, what was answered, what is ready to be committed.

    <root>/<run id>/
        job.json                    whose it is and whether it lives: run, host, pid, start of the process, config_hash
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

import hashlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparkinfer.errors import SparkInferError
from sparkinfer.host.lineage import own_mark
from sparkinfer.job.files import arrow_uri, file_system, files, listing, read, remove, write
from sparkinfer.job.harvest import JOB_FILE, Harvest
from sparkinfer.model.lock import this_host
from sparkinfer.sink.faults import job_error
from sparkinfer.sink.location import absolute, is_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)

FOLDER = "_sparkinfer"
#: Raised when staged answers of an older sparkinfer cannot be read any more.
LAYOUT = 1


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
        self._root, self._root_inside = root, self._folder.removesuffix(f"/{run_id}")
        self._run_id, self._config_hash = run_id, config_hash
        self._state = "running"
        self._signing = threading.Lock()
        try:
            for part in ("progress", "harvest"):
                self._fs.create_dir(f"{self._folder}/{part}", recursive=True)
            self._sign()
            self._harvest = Harvest(self._fs, self._root_inside, self._folder, own=self._job)
        except OSError as error:
            raise job_error(error, table=self.path, doing="Making the staging folder") from error

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
        self._sign()
        self._harvest.beat()

    def harvest(self) -> list[str]:
        """Folders of answers that earlier runs completed, as Spark opens them."""
        return [self._as_spark_opens(folder) for folder in self._harvest.answers()]

    def harvest_segments(self) -> list[str]:
        """Folders of segments that engines of earlier runs wrote, as Spark opens them."""
        return [self._as_spark_opens(folder) for folder in self._harvest.segments()]

    def progress(self) -> list[dict[str, float]]:
        """The engine processes' counters, one dict each."""
        counters = []
        for path in files(self._fs, self.progress_dir):
            if path.endswith(".json"):
                content = read(self._fs, path)
                if content is not None:
                    counters.append(content)
        return counters

    def drop_bucket(self, bucket: int) -> None:
        """Forget a bucket that is committed."""
        parts = [
            i.base_name
            for i in listing(self._fs, self._folder)
            if i.base_name.startswith(("pending", "segments", "answers", "rows", "doubles", "cached"))
        ]
        for part in parts:
            remove(self._fs, f"{self._folder}/{part}/bucket={bucket}")

    def is_there(self) -> bool:
        """Whether the folder still has its job file, as far as that can be seen."""
        try:
            return read(self._fs, f"{self._folder}/{JOB_FILE}") is not None
        except OSError:
            return True

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
        self._harvest.remove()
        remove(self._fs, self._folder)

    def _as_spark_opens(self, folder: str) -> str:
        return f"{self._root}{folder.removeprefix(self._root_inside)}"

    def _sign(self) -> None:
        with self._signing:  # the beat has a thread of its own: what it wrote last would stand for what was said last
            write(self._fs, f"{self._folder}/{JOB_FILE}", self._job())

    def _job(self) -> dict[str, Any]:
        return {
            "layout": LAYOUT,
            "run_id": self._run_id,
            "state": self._state,
            "host": this_host(),
            "pid": os.getpid(),
            "started": own_mark().started,
            "config_hash": self._config_hash,
            "beat": time.time(),
        }


@contextmanager
def staging_of(root: str, *, run_id: str, config_hash: str) -> Iterator[Staging]:
    """The run's staging folder: removed at the end, kept for the next run where the block raises (the error says where)."""
    staging = Staging(root, run_id=run_id, config_hash=config_hash)
    try:
        yield staging
    except SparkInferError as error:
        if staging.is_there():
            staging.release()
            left = f"What was answered is kept in {staging.path}; the next run of this job uses it."
        else:
            left = f"The staging folder {staging.path} is gone: something removed it while the job ran."
        raise type(error)(f"{error.message} {left}") from error
    except BaseException:
        staging.release()
        raise
    staging.remove()
