"""The harness's end of an application: start it, order a job, hear what it says, and find it dead or hanging."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkinfer.host.lineage import ProcessMark, mark_of
from tests.support.drivers import driver_environment
from tests.support.executors import descendants, kill

START_S = 300.0
#: A job of this size that takes longer stands still.
JOB_S = 300.0


class StandsStill(AssertionError):
    """A job did not end; the stacks of its processes are in the file named."""


class Application:
    """One driver process with its Spark.

    Args:
        master: Spark master.
        config: settings of the session.
        folder: its current folder, where its output is kept.
    """

    def __init__(self, master: str, config: dict[str, str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        self._log = (folder / "driver.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kills.app", master, json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=driver_environment(),
            cwd=folder,
            start_new_session=True,
        )
        #: What it has started, as far as it was looked for, with its command line.
        self.started: dict[ProcessMark, str] = {}
        threading.Thread(target=self._hear, daemon=True).start()
        try:
            self.wait(lambda: self.has("ready") or self.process.poll() is not None, seconds=START_S)
            assert self.has("ready"), f"the application did not start: {folder / 'driver.log'}"
        except BaseException:
            self.stop()
            raise
        self.look()

    def order(self, **job: object) -> None:
        """Begin a job; events of the one before are forgotten."""
        self.events.clear()
        self._tell(json.dumps(job) + "\n")

    def outcome(self) -> dict[str, Any]:
        """How the job ended: ``done``, ``failed``, or ``killed`` where the driver died under it.

        Raises:
            StandsStill: it did not end in time.
        """
        self.wait(lambda: self.has("done", "failed") or not self.lives, seconds=JOB_S)
        return next((e for e in self.events if e["event"] in ("done", "failed")), {"event": "killed"})

    def has(self, *names: str) -> bool:
        """Whether one of these events came."""
        return self.count(*names) > 0

    def count(self, *names: str, until: float = float("inf")) -> int:
        """How many of these events came up to a moment."""
        return sum(event["event"] in names and event["time"] <= until for event in list(self.events))

    @property
    def lives(self) -> bool:
        """Whether the driver runs, and its JVM with it."""
        return self.process.poll() is None and bool(self.jvm())

    def jvm(self) -> list[int]:
        """The driver's JVM, where it runs."""
        return [mark.pid for mark, command in self.started.items() if "SparkSubmit" in command and mark.is_alive()]

    def look(self) -> dict[int, str]:
        """Processes below the driver now; remembered, so that a dead driver's are found too."""
        below = descendants(self.process.pid)
        marks = {mark_of(pid): command for pid, command in below.items()}
        self.started |= {mark: command for mark, command in marks.items() if mark is not None}
        return below

    def wait(self, condition: Callable[[], object], *, seconds: float) -> None:
        """Until the condition holds.

        Raises:
            StandsStill: it never did.
        """
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise StandsStill(f"nothing for {seconds:.0f} s; {self._stacks()}")
            time.sleep(0.02)

    def stop(self) -> list[str]:
        """End it in order, or by force where it does not; what it left behind and had to be killed here."""
        self.look()
        if self.process.poll() is None:
            self.process.stdin.close()  # type: ignore[union-attr]
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                kill(self.process.pid)
        left = self._stayed(seconds=30)
        for mark in left:
            mark.kill()
        self.process.wait()
        self._log.close()
        return [f"{mark.pid} {self.started[mark][:200]}" for mark in left]

    def _stayed(self, *, seconds: float) -> list[ProcessMark]:
        """Those of its processes that still run after so long."""
        until = time.monotonic() + seconds
        while (left := [mark for mark in self.started if mark.is_alive()]) and time.monotonic() < until:
            time.sleep(0.1)
        return left

    def _tell(self, line: str) -> None:
        self.process.stdin.write(line)  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]

    def _hear(self) -> None:
        for line in self.process.stdout:  # type: ignore[union-attr]
            if line.startswith("{"):
                self.events.append(json.loads(line))

    def _stacks(self) -> str:
        """Where all threads of driver and JVM stand, for the person who looks for the reason."""
        path = self.folder / f"stacks-{time.time():.0f}.txt"
        for pid in self.jvm():
            shown = subprocess.run(["jstack", str(pid)], capture_output=True, text=True, check=False)
            path.open("a").write(shown.stdout + shown.stderr)
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGUSR1)  # the Python threads go into driver.log
            time.sleep(1)
        return f"stacks in {path} and {self.folder / 'driver.log'}"
