"""``python -m tests.soak --seconds 1800 --rows 200000``: exit code 1 where something grew, starved or was left behind."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.support.leftovers import leftovers, mark_this_run

mark_this_run()
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ["SPARKINFER_CONFIG"] = os.devnull

from tests.soak.watch import Watch, allowed, table
from tests.support.drivers import THRIFTY, driver_environment

EVERY_S = 2.0
#: Beside three times the seconds that were asked for: a job that stands still does not hold the soak for ever.
PATIENCE_S = 600.0


def soak(folder: Path, *, seconds: float, rows: int, step_ms: int) -> list[str]:
    """Run the application, look at it all the while, print the table; what is wrong, a sentence each."""
    rows_a_round = max(200, rows // 40)
    arguments = {
        "model": f"fake:?log={folder / 'engine.log'}&step_ms={step_ms}",
        "seconds": seconds,
        "rows": rows,
        "rows_a_round": rows_a_round,
        "head_start": 3.0,
        "config": {
            **THRIFTY,
            "spark.local.dir": str(folder / "local"),
            "spark.sparkinfer.engine.max_batch_size": "32",
            # So small that it is full early: what the engine holds by then is what it ever holds.
            "spark.sparkinfer.engine.memo_bytes": str(2 * 2**20),
        },
    }
    (folder / "local").mkdir()
    events: list[dict[str, Any]] = []
    with (folder / "driver.log").open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.app", json.dumps(arguments)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=driver_environment(),
            cwd=folder,
        )
        hearing = threading.Thread(target=_hear, args=(driver, events), daemon=True)
        hearing.start()
        watch, until = Watch(driver.pid), time.monotonic() + 3 * seconds + PATIENCE_S
        while driver.poll() is None:
            if time.monotonic() > until:
                driver.kill()
            if any(event["event"] == "round" for event in events) and not _has(events, "patient begins"):
                watch.look()
            time.sleep(EVERY_S)
        hearing.join()
    if driver.returncode != 0 or not _has(events, "done"):
        return [f"the application ended with {driver.returncode}: {(folder / 'driver.log').read_text()[-2000:]}"]
    growth = watch.growth()
    print(table(growth))
    wrong = [
        f"{role}: {measure} grew from {early:.0f} to {late:.0f}"
        for (role, measure), (early, late) in growth.items()
        if late - early > allowed(role, measure)
    ]
    return wrong + _missing(watch) + _order(folder, events) + [f"left behind: {what}" for what in leftovers()]


def _missing(watch: Watch) -> list[str]:
    return [
        f"{role} was never seen"
        for role in ("driver", "driver JVM", "Python workers", "engine")
        if not watch.samples.get(role)
    ]


def _order(folder: Path, events: list[dict[str, Any]]) -> list[str]:
    """The urgent job is served first, and meanwhile the patient one goes on."""
    at = {event["event"]: event["time"] for event in events}
    begun, ended = at["urgent begins"], at["urgent ends"]
    served = {"urgent": 0, "patient": 0}
    for line in (folder / "engine.log").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "request" and begun <= event["time"] <= ended:
            for name in served:
                served[name] += f"Say {name} " in event["prompt"]
    print(
        f"\nwhile both jobs waited, the engine answered {served['urgent']} urgent and {served['patient']} patient rows"
    )
    wrong = []
    if at["patient ends"] <= ended:
        wrong.append("the patient job was done before the urgent one")
    if served["patient"] == 0:
        wrong.append("the patient job starved")
    if served["urgent"] <= served["patient"]:
        wrong.append("the urgent job was not served first")
    return wrong


def _hear(driver: subprocess.Popen[str], events: list[dict[str, Any]]) -> None:
    for line in driver.stdout:  # type: ignore[union-attr]
        if line.startswith("{"):
            events.append(json.loads(line))
            if events[-1]["event"] == "round":
                print(f"{events[-1]['rows']:>9,} rows", flush=True)


def _has(events: list[dict[str, Any]], name: str) -> bool:
    return any(event["event"] == name for event in events)


def main() -> int:
    """Soak, and say what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--step-ms", type=int, default=20, help="what a batch of the counting engine takes")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sparkinfer-soak-", ignore_cleanup_errors=True) as folder:
        wrong = soak(Path(folder), seconds=asked.seconds, rows=asked.rows, step_ms=asked.step_ms)
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
