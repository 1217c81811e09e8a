from __future__ import annotations

import subprocess
import sys

from sparkinfer.tracking.base import DatasetFacts, JobFacts, JobOutcome, NullTracker, RecordingTracker, RunStatus
from sparkinfer.types import ModelRef

FACTS = JobFacts(
    job="labels",
    run_key="r1",
    model=ModelRef(uri="fake", name="fake", version="1", fingerprint="f", kind="fake", location="fake"),
    config_hash="c",
    source=DatasetFacts(name="reviews", source="/data/reviews", format="parquet"),
    output=DatasetFacts(name="labels", source="/out/labels", format="delta"),
)


def test_the_recording_tracker_keeps_what_a_job_tells_in_order() -> None:
    tracker = RecordingTracker("run-7")
    assert tracker.start(FACTS) == "run-7"
    figures = {"rows": 1.0}
    tracker.progress(1, figures)
    figures["rows"] = 2.0
    tracker.progress(2, figures)
    outcome = JobOutcome(status=RunStatus.FINISHED)
    assert tracker.finish(outcome) == "run-7"
    assert tracker.facts == [FACTS]
    assert tracker.steps == [(1, {"rows": 1.0}), (2, {"rows": 2.0})]
    assert tracker.outcomes == [outcome]


def test_the_null_tracker_has_no_run() -> None:
    tracker = NullTracker()
    assert tracker.start(FACTS) is None
    tracker.progress(1, {})
    assert tracker.finish(JobOutcome(status=RunStatus.KILLED)) is None


def test_importing_the_tracker_does_not_import_mlflow() -> None:
    look = "import sys, sparkinfer.tracking.mlflow; print([m for m in ('mlflow', 'pandas', 'pyspark') if m in sys.modules])"
    seen = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"
