"""``python -m tests.kills --kills 200 --seed 1 --from 0``: each kill is a line on the screen and one in ``<out>/kills.jsonl``.

Exit code 1 where a kill lost, doubled or overpaid something, or a job stood still.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.support.leftovers import mark_this_run

mark_this_run()
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ["SPARKINFER_CONFIG"] = os.devnull
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from tests.kills import tables
from tests.kills.application import Application
from tests.kills.cluster import Standalone
from tests.kills.models import COUNTED, FAKE, REAL, Model, fake_model, real_model
from tests.kills.plan import Kill, kill_of
from tests.kills.table import sentence
from tests.kills.trial import BUCKETS, Missed, Reference, begin, disturb, observed, run, undisturbed, verdict
from tests.support.drivers import THRIFTY

MASTERS = {"local": "local[2,4]", "local-cluster": "local-cluster[2,1,1024]"}
#: Milliseconds of a batch, so that answers are still being made while the first tables are written; two executors take twice as long each.
STEP_MS = 600


class Matrix:
    """Runs kills one after the other; the application of a setting lives on until a kill ends it.

    Args:
        out: folder for records and, where a kill went wrong, for what it left.
        engine: ``fake`` or ``real``.
        replacing: the disturbed job finds a table with other texts under its keys: each of its commits is a MERGE.
    """

    def __init__(self, out: Path, *, engine: str, replacing: bool = False) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._records = out / "kills.jsonl"
        self._folder = out / f"run-{os.getpid()}"
        self._engine = engine
        self._replacing = replacing
        self._old: Path | None = None
        self._sources = tables.Sources.write(self._folder / "sources", FAKE if engine == "fake" else REAL)
        if engine == "real":
            os.environ["KILLS_LOG"] = str(self._folder / "engine.log")
            os.environ["PYTHONPATH"] = os.pathsep.join([str(COUNTED), os.environ.get("PYTHONPATH", "")])
        self._reference: Reference | None = None
        self._setting = ""
        self._application: Application | None = None
        self._cluster: Standalone | None = None

    def kill(self, kill: Kill) -> dict[str, Any]:
        """One kill and its record; one that was missed says so and counts for nothing."""
        began = time.monotonic()
        folder = self._folder / f"kill-{kill.number}"
        folder.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = {
            "number": kill.number,
            "seed": kill.seed,
            "engine": self._engine,
            "setting": kill.setting,
            "kind": kill.kind,
        }
        about = {"replacing": True} if self._replacing else {}
        try:
            found = self._kill(kill, folder)
        except Missed:
            found |= {"missed": True}
        except Exception as error:
            found |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:1000]}
            traceback.print_exc()
            self.end_application(by_force=True)
        found |= about
        found["seconds"] = round(time.monotonic() - began, 1)
        with self._records.open("a") as file:
            file.write(json.dumps(found) + "\n")
        if found.get("ok") or found.get("missed"):
            shutil.rmtree(folder, ignore_errors=True)
        print(sentence(found), flush=True)
        return found

    def close(self) -> None:
        """End everything; what went wrong keeps its folder."""
        self._leave_setting()
        if not list(self._folder.glob("kill-*")):
            shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self, kill: Kill, folder: Path) -> dict[str, Any]:
        self._enter(kill.setting)
        reference = self._known_reference()
        model, into = self._model(kill, folder), folder / "table"
        if self._replacing:
            shutil.copytree(self._table_before(), into)
        application = self._alive()
        begun = time.time()
        begin(application, self._sources.first, str(into), model)
        blow = disturb(kill, application, self._cluster, model)
        outcome = application.outcome()
        found = observed(kill, blow, application, model, begun=begun) | {"outcome": outcome["event"]}
        found |= {"error": outcome["error"]} if "error" in outcome else {}
        if self._cluster is not None:
            self._cluster.heal()
        return verdict(found, self._alive(), self._sources, reference, model, into)

    def _model(self, kill: Kill, folder: Path) -> Model:
        if self._engine == "real":
            return real_model(kill.number)
        return fake_model(folder, step_ms=STEP_MS if self._setting == "local" else 2 * STEP_MS)

    def _known_reference(self) -> Reference:
        if self._reference is None:
            folder = self._folder / f"undisturbed-{time.time_ns()}"
            folder.mkdir()
            model = real_model(-1) if self._engine == "real" else fake_model(folder, step_ms=0)
            self._reference = undisturbed(self._alive(), self._sources, model, folder)
        return self._reference

    def _table_before(self) -> Path:
        if self._old is None:
            folder = self._folder / "before"
            folder.mkdir()
            model = real_model(-2) if self._engine == "real" else fake_model(folder, step_ms=0)
            run(self._alive(), self._sources.before, str(folder / "table"), model)
            self._old = folder / "table"
        return self._old

    def _enter(self, setting: str) -> None:
        if setting == self._setting:
            return
        self._leave_setting()
        self._setting = setting
        if setting == "standalone":
            self._cluster = Standalone(self._folder / f"cluster-{time.time_ns()}")

    def _leave_setting(self) -> None:
        self.end_application()
        if self._cluster is not None:
            self._cluster.stop()
        self._cluster, self._setting = None, ""

    def _alive(self) -> Application:
        """The setting's application, a new one where the last one was killed."""
        if self._application is not None and not self._application.lives:
            self.end_application()
        if self._application is None:
            master = MASTERS.get(self._setting) or self._cluster.url  # type: ignore[union-attr]
            folder = self._folder / f"application-{time.time_ns()}"
            batch = real_model(0).batch if self._engine == "real" else fake_model(folder, step_ms=0).batch
            self._application = Application(master, _config(folder, batch=batch), folder)
        return self._application

    def end_application(self, *, by_force: bool = False) -> None:
        """Stop it; processes that outlive it are a fault of ours."""
        application, self._application = self._application, None
        if application is None:
            return
        if by_force:
            application.process.kill()
        left = application.stop()
        assert not left or by_force, f"processes {left} outlived their driver"
        if not by_force:
            shutil.rmtree(application.folder, ignore_errors=True)


def _config(folder: Path, *, batch: int) -> dict[str, str]:
    local = folder / "local"
    local.mkdir(parents=True)
    return {
        **THRIFTY,
        "spark.local.dir": str(local),
        "spark.executor.cores": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sparkinfer.engine.max_batch_size": str(batch),
        "spark.sparkinfer.engine.stall_timeout_s": "6",
        "spark.sparkinfer.engine.idle_timeout_s": "20",
    }


def main() -> int:
    """Run the kills that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first kill")
    parser.add_argument("--out", type=Path, default=Path("out/kills"))
    parser.add_argument("--engine", choices=("fake", "real"), default="fake")
    parser.add_argument("--replacing", action="store_true", help="each commit of the disturbed job is a MERGE")
    parser.add_argument("--kind", help="only kills of this kind")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no kill after so long")
    asked = parser.parse_args()
    matrix, began, failed = (
        Matrix(asked.out.absolute(), engine=asked.engine, replacing=asked.replacing),
        time.monotonic(),
        0,
    )
    try:
        for number in range(asked.first, asked.first + asked.kills):
            kill = kill_of(number, seed=asked.seed, buckets=BUCKETS)
            if asked.kind not in (None, kill.kind):
                continue
            if time.monotonic() - began > asked.seconds:
                print(f"time is up; go on with FROM={number}")
                break
            found = matrix.kill(kill)
            failed += not (found.get("ok") or found.get("missed"))
    finally:
        matrix.close()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
