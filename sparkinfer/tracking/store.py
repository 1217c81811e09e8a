"""Which MLflow store and experiment a job writes to, without touching the user's own (fluent) MLflow state."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import random
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from sparkinfer.tracking.redact import redact_text

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")

DEFAULT_EXPERIMENT = "sparkinfer"
PROBE_TIMEOUT_S = 5.0
#: Waits between the attempts on a sqlite store: first use migrates, and one process at a time can write.
SQLITE_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class ParentRun:
    """The run that the user has open; the job's run becomes its child."""

    run_id: str
    experiment_id: str


def active_parent() -> ParentRun | None:
    """The calling thread's active MLflow run. Looks only where MLflow is imported already: else there is none."""
    mlflow = sys.modules.get("mlflow")
    if mlflow is None or not hasattr(mlflow, "active_run"):
        return None
    run = mlflow.active_run()
    return None if run is None else ParentRun(run.info.run_id, run.info.experiment_id)


def tracking_uri(asked: str | None) -> str:
    """The store's URI: the job's own, else what the user set or the platform gives, else a sqlite file in this folder."""
    if asked:
        return asked
    import mlflow

    on_databricks = "DATABRICKS_RUNTIME_VERSION" in os.environ
    if mlflow.is_tracking_uri_set() or on_databricks:
        return str(mlflow.get_tracking_uri())
    return local_uri(Path.cwd())


def local_uri(folder: Path) -> str:
    """The URI of the sqlite store in a folder."""
    return f"sqlite:///{folder.resolve() / 'mlflow.db'}"


def is_sqlite(uri: str) -> bool:
    """Whether the store is a sqlite file."""
    return uri.startswith("sqlite:")


def check_reachable(uri: str) -> None:
    """Fail fast where a server does not answer: MLflow itself would go on trying for minutes.

    Raises:
        OSError: nobody listens there. Behind a proxy nothing is checked.
    """
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return
    if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.hostname):
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=PROBE_TIMEOUT_S).close()
    except OSError as error:
        raise OSError(f"no MLflow server answers at {redact_text(uri)}: {error}") from error


def experiment_id(client: MlflowClient, uri: str, asked: str | None) -> str:
    """The id of the experiment by name, made where it is missing; without a name the user's own choice, else ours."""
    name = asked
    if name is None:
        chosen = _chosen_by_user(uri)
        if chosen is not None:
            return chosen
        name = DEFAULT_EXPERIMENT
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    try:
        return str(client.create_experiment(name, artifact_location=_artifact_location(uri, name)))
    except Exception:  # made by another process since we looked
        found = client.get_experiment_by_name(name)
        if found is None:
            raise
        return str(found.experiment_id)


def _chosen_by_user(uri: str) -> str | None:
    """What set_experiment, the environment or the notebook chose; read from MLflow's own state, which stays as it is."""
    import mlflow
    from mlflow.tracking.default_experiment import DEFAULT_EXPERIMENT_ID
    from mlflow.tracking.fluent import _get_experiment_id

    if mlflow.get_tracking_uri() != uri:
        return None  # ids of another store mean nothing here
    chosen = _get_experiment_id()
    return None if chosen in (None, DEFAULT_EXPERIMENT_ID) else str(chosen)


def _artifact_location(uri: str, experiment: str) -> str | None:
    """For a sqlite file a folder beside it (MLflow's default would be the current folder); else the server decides."""
    if not is_sqlite(uri):
        return None
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in experiment).strip("_") or DEFAULT_EXPERIMENT
    return (_database(uri).parent / "mlartifacts" / safe).as_uri()


def has_run(client: MlflowClient, run_id: str) -> bool:
    """Whether the store holds that run."""
    from mlflow.exceptions import MlflowException

    try:
        client.get_run(run_id)
    except MlflowException:
        return False
    return True


def open_client(uri: str) -> MlflowClient:
    """A client whose store answers; the first use of a sqlite file creates and migrates it, once.

    Raises:
        Exception: whatever the store raises, after the retries that sqlite gets.
    """
    from mlflow import MlflowClient

    check_reachable(uri)
    if not is_sqlite(uri):
        return MlflowClient(tracking_uri=uri)
    database = _database(uri)
    database.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(database), _quiet_migrations():
        client = MlflowClient(tracking_uri=uri)
        retrying(uri, lambda: client.get_experiment_by_name(DEFAULT_EXPERIMENT), every_error=True)
    return client


@contextlib.contextmanager
def _one_at_a_time(database: Path) -> Iterator[None]:
    """Hold this host's lock for the file's first use: two migrations at once leave a database that no retry mends."""
    digest = hashlib.sha256(str(database).encode()).hexdigest()[:16]
    lock = Path(tempfile.gettempdir()) / f"sparkinfer-mlflow-{os.getuid()}-{digest}.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing the file lets it go
        yield


def _database(uri: str) -> Path:
    return Path(unquote(uri.removeprefix("sqlite:///"))).resolve()


def retrying(uri: str, call: Callable[[], T], *, every_error: bool = False) -> T:
    """Call, and on a sqlite store call again where it is locked (or, on first use, half migrated by another process)."""
    waits = SQLITE_WAITS_S if is_sqlite(uri) else ()
    for wait in waits:
        try:
            return call()
        except Exception as error:
            if not every_error and "locked" not in str(error):
                raise
            time.sleep(wait * random.uniform(0.5, 1.5))  # spreads the processes
    return call()


@contextlib.contextmanager
def _quiet_migrations() -> Iterator[None]:
    """Keep the store's set-up messages off the terminal; their loggers get their level back."""
    loggers = [logging.getLogger(name) for name in ("mlflow.store.db.utils", "alembic")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
