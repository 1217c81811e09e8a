"""What a job file hands to ``run()``."""

from __future__ import annotations

from typing import Any

from sparkinfer.cli.run import arguments
from sparkinfer.config.job import JobConfig, UdfConfig
from sparkinfer.config.settings import TrackingSettings
from sparkinfer.tracking.base import NullTracker
from sparkinfer.tracking.mlflow import MlflowTracker


def job(**more: Any) -> JobConfig:
    return JobConfig(source="in/texts", into="out/labels", udf=UdfConfig(model="sample"), **more)


def test_a_job_that_says_nothing_about_tracking_leaves_it_to_the_settings() -> None:
    assert arguments(job())["tracker"] is None


def test_a_job_that_says_something_about_tracking_has_it_so() -> None:
    assert isinstance(arguments(job(tracking=TrackingSettings(enabled=False)))["tracker"], NullTracker)
    tracker = arguments(job(tracking=TrackingSettings(sample_rows=0)))["tracker"]
    assert isinstance(tracker, MlflowTracker)
