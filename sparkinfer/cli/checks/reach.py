"""Disk, sockets, the model, the tracking store, and what ends an engine: what a job reaches out to."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from sparkinfer.cli.checks.base import Check, fail, ok, size, warn
from sparkinfer.errors import SparkInferError
from sparkinfer.host.place import MAX_SOCKET_PATH
from sparkinfer.host.watch import active_watch
from sparkinfer.model.cache import cache_root
from sparkinfer.tracking import store
from sparkinfer.tracking.redact import redact_text
from sparkinfer.types import ModelRef

LOW_DISK = 5 * 1024**3
NO_DISK = 1024**3
#: What a socket's name takes beside its folder: the user's folder, 24 digits, ``.s``.
SOCKET_NAME = len("/sparkinfer-4294967295/") + 26


def check_disk() -> Check:
    """Free space where tables, staged rows and models are written."""
    places = {"here": Path.cwd(), "temporary files": Path(tempfile.gettempdir()), "model cache": cache_root()}
    free = {name: shutil.disk_usage(_existing(path)).free for name, path in places.items()}
    told = ", ".join(f"{name} {size(count)}" for name, count in free.items())
    fix = "Free space, or set TMPDIR (temporary files) and SPARKINFER_CACHE (models) to a larger disk."
    if min(free.values()) < NO_DISK:
        return fail("disk", f"{told} free", fix)
    if min(free.values()) < LOW_DISK:
        return warn("disk", f"{told} free", fix)
    return ok("disk", f"{told} free")


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def check_socket() -> Check:
    """Whether the path of an engine's socket fits."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    if (
        len(os.fsencode(folder)) + SOCKET_NAME > MAX_SOCKET_PATH
        and len(os.fsencode(tempfile.gettempdir())) + SOCKET_NAME > MAX_SOCKET_PATH
    ):
        return fail(
            "socket", f"{folder} is too long for a Unix socket", "Set TMPDIR to a shorter folder, such as /tmp."
        )
    return ok("socket", f"below {folder}")


def check_watch() -> Check:
    """Which watch ends an engine when Spark is gone."""
    if not hasattr(os, "pidfd_open"):
        return warn("life-cycle watch", active_watch(), "Python 3.9+ on Linux 5.3+ sees the end of a process at once.")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return warn(
            "life-cycle watch", f"start time each second (no pidfd: {error.strerror})", "Linux 5.3 or newer has pidfd."
        )
    return ok("life-cycle watch", "the executor's JVM by pidfd, Spark's block manager folder, idle time-out")


def check_model(uri: str | None) -> tuple[Check, ModelRef | None]:
    """Whether the model can be had, without downloading or loading it."""
    if uri is None:
        fix = "Set model in conf/sparkinfer.yaml or spark.sparkinfer.model, or name one in each llm_udf."
        return warn("model", "none is set", fix), None
    from sparkinfer.model import resolve

    try:
        ref = resolve(uri)
    except SparkInferError as error:
        return fail("model", f"[{error.code}] {error.message}", "See docs/troubleshooting.md for this code."), None
    return ok("model", f"{ref.name}, version {ref.version} ({ref.kind})"), ref


def check_tracking(uri: str | None) -> Check:
    """Whether the MLflow store answers. Asks no server for more than a connection."""
    chosen = uri or os.environ.get("MLFLOW_TRACKING_URI") or store.local_uri(Path.cwd())
    try:
        store.check_reachable(chosen)
    except OSError as error:
        return warn("tracking", str(error), "Jobs run without it; start the server or set tracking_uri.")
    return ok("tracking", redact_text(chosen))
