"""Processes of this package that are started by another one: what they inherit, and that they end with it.

``python -m sparkinfer.engine.child PARENT MODULE ARGUMENT...`` runs a module so; before it imports anything that takes its time.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path

#: Of Spark's workers: credentials and handles that are nobody's business here, and thread counts meant for one task.
_DROPPED = (
    "PYTHON_WORKER_FACTORY_SECRET",
    "PYTHON_WORKER_FACTORY_PORT",
    "PYTHON_WORKER_FACTORY_SOCK_PATH",
    "PYTHON_WORKER_FACTORY_SOCK_DIR",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_GATEWAY_PORT",
    "_PYSPARK_DRIVER_CALLBACK_HOST",
    "_PYSPARK_DRIVER_CONN_INFO_PATH",
    "_SPARK_AUTH_SECRET",
    "SPARK_CONNECT_AUTHENTICATE_TOKEN",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)
_PR_SET_PDEATHSIG = 1


def child_environment(threads: int) -> dict[str, str]:
    """This process's environment, less Spark's secrets, with so many CPU threads and this import path."""
    kept = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    kept["OMP_NUM_THREADS"] = str(threads)  # Spark forces the cores of one task
    kept["NUMBA_NUM_THREADS"] = str(threads)  # numba takes all that the host has
    kept["PYTHONPATH"] = os.pathsep.join(_import_path())
    return kept


def child_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package in a process that ends with this one."""
    return [sys.executable, "-m", "sparkinfer.engine.child", str(os.getpid()), module, *arguments]


def _end_with(parent: int) -> None:
    """Let the kernel end this process with the one that started it, also while it is stopped, loads or hangs (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            sys.exit(1)


def _import_path() -> list[str]:
    """Where this process imports from, ``sparkinfer`` first: a folder, or an archive that was shipped with the job.

    Without the jars that Spark puts there: dozens, and every import would look into each of them.
    """
    own = str(Path(__file__).absolute().parents[2])
    return list(dict.fromkeys([own, *(entry for entry in sys.path if entry and not entry.endswith(".jar"))]))


if __name__ == "__main__":
    _end_with(int(sys.argv[1]))
    sys.argv[:3] = sys.argv[2:3]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
