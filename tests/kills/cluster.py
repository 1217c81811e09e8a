"""Where the jobs run: local, local-cluster, or a standalone master with two workers on two loopback addresses."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from tests.support.drivers import driver_environment
from tests.support.executors import kill

HOSTS = ("127.0.0.1", "127.0.0.2")


class Standalone:
    """A master and two workers, which count as two hosts.

    Args:
        folder: for their logs and work folders.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._master, log = self._start("master", HOSTS[0], "master.Master", "--port", "0", "--webui-port", "0")
        self.url = self._said(log, r"Starting Spark master at (spark://\S+)")[1]
        self.heal()

    def workers(self) -> dict[str, int]:
        """Host -> pid of its worker."""
        return {host: process.pid for host, process in self._workers.items() if process.poll() is None}

    def heal(self) -> None:
        """Start the workers that are missing, and wait until the master has them."""
        for host in HOSTS:
            if host in self.workers():
                continue
            arguments = ("--host", host, "--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g")
            work = str(self._folder / f"work-{host}")
            self._workers[host], log = self._start(
                f"worker-{host}-{time.time_ns()}", host, "worker.Worker", *arguments, "--work-dir", work, self.url
            )
            self._said(log, r"Successfully registered with master")

    def stop(self) -> None:
        """End them."""
        for process in (*self._workers.values(), self._master):
            kill(process.pid)
            process.wait()

    def _start(self, name: str, host: str, main: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        import pyspark

        home = Path(pyspark.__file__).parent
        log = self._folder / f"{name}.log"
        environment = {
            **driver_environment(),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        (self._folder / "local").mkdir(exist_ok=True)
        with log.open("wb") as output:
            command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *arguments]
            if main.startswith("master"):
                command += ["--host", host]
            return subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=self._folder), log

    def _said(self, log: Path, pattern: str) -> re.Match[str]:
        until = time.monotonic() + 60
        while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
            assert time.monotonic() < until, f"{log} never said {pattern}"
            time.sleep(0.05)
        return found
