"""The tracker against MLflow itself, on sqlite stores."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkinfer.tracking import store
from sparkinfer.tracking.base import DatasetFacts, JobFacts, JobOutcome, RunStatus
from sparkinfer.tracking.mlflow import MlflowTracker
from sparkinfer.types import ModelRef

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from pyspark.sql import SparkSession

MODEL = ModelRef(
    uri="models:/m@live", name="m", version="3", fingerprint="ab" * 32, kind="mlflow", location="models:/m/3"
)
SOURCE = DatasetFacts(
    name="reviews", source="/data/reviews", format="delta", version=4, columns={"id": "string", "n": "bigint"}, rows=9
)
OUTPUT = DatasetFacts(name="labels", source="/out/labels", format="delta", columns={"label": "string"})
OUTCOME = JobOutcome(
    status=RunStatus.FINISHED,
    metrics={"rows": 9.0, "seconds": 1.5, "rate": float("nan")},
    failures={"PROMPT_TOO_LONG": 2},
    samples=({"id": "a", "label": "good"}, {"id": "b", "label": None}),
    output_version=7,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(scope="module")
def client(folder: Path) -> MlflowClient:
    return store.open_client(store.local_uri(folder))


@pytest.fixture
def facts(folder: Path, request: pytest.FixtureRequest) -> JobFacts:
    return JobFacts(
        job="labels",
        run_key="key-1",
        model=MODEL,
        config_hash="c" * 64,
        source=SOURCE,
        output=OUTPUT,
        params={"udf.max_tokens": "16"},
        tags={"team": "support"},
        prompt="Is {text} good?",
        system="You label.",
        experiment=request.node.name,
        tracking_uri=store.local_uri(folder),
    )


def track(facts: JobFacts, outcome: JobOutcome = OUTCOME, *, sample_rows: int = 20) -> MlflowTracker:
    tracker = MlflowTracker(sample_rows=sample_rows)
    tracker.start(facts)
    tracker.progress(1, {"rows_done": 4.0})
    tracker.progress(2, {"rows_done": 9.0})
    tracker.finish(outcome)
    return tracker


def run_of(client: MlflowClient, tracker: MlflowTracker) -> Run:
    assert tracker.warnings == []
    assert tracker.run_id is not None
    return client.get_run(tracker.run_id)


def artifact(client: MlflowClient, run: Run, name: str) -> str:
    return Path(client.download_artifacts(run.info.run_id, name)).read_text()


def test_a_run_tells_what_ran_and_what_came_of_it(client: MlflowClient, facts: JobFacts) -> None:
    run = run_of(client, track(facts))
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "labels"
    assert run.data.params["model_version"] == "3"
    assert run.data.params["model_fingerprint"] == MODEL.fingerprint
    assert run.data.params["udf.max_tokens"] == "16"
    assert run.data.metrics == {"rows": 9.0, "seconds": 1.5, "rows_done": 9.0, "failed.PROMPT_TOO_LONG": 2.0}
    assert [m.step for m in client.get_metric_history(run.info.run_id, "rows_done")] == [1, 2]
    assert run.data.tags["team"] == "support"
    assert run.data.tags["sparkinfer.run_key"] == "key-1"
    assert run.data.tags["sparkinfer.table_version"] == "7"
    assert artifact(client, run, "templates/prompt.txt") == "Is {text} good?"
    assert artifact(client, run, "templates/system.txt") == "You label."
    assert json.loads(artifact(client, run, "failures.json")) == {"PROMPT_TOO_LONG": 2}
    table = json.loads(artifact(client, run, "samples.json"))
    assert table == {"columns": ["id", "label"], "data": [["a", "good"], ["b", None]]}


def test_both_tables_are_datasets_with_their_delta_versions(client: MlflowClient, facts: JobFacts) -> None:
    run = run_of(client, track(facts))
    by_context = {d.tags[0].value: d.dataset for d in run.inputs.dataset_inputs}
    assert set(by_context) == {"inference", "output"}
    source, output = by_context["inference"], by_context["output"]
    assert source.source_type == output.source_type == "delta_table"
    assert json.loads(source.source) == {"path": "/data/reviews", "delta_table_version": 4}
    assert json.loads(output.source) == {"path": "/out/labels", "delta_table_version": 7}
    assert [c["name"] for c in json.loads(source.schema)["mlflow_colspec"]] == ["id", "n"]


@pytest.mark.parametrize("source", ["/data/reviews.parquet", "main.reviews", "a DataFrame"])
def test_a_source_without_versions_is_a_dataset_too(client: MlflowClient, facts: JobFacts, source: str) -> None:
    kind = "dataframe" if " " in source else "parquet"
    run = run_of(client, track(replace(facts, source=DatasetFacts(name="reviews", source=source, format=kind))))
    inputs = [d.dataset for d in run.inputs.dataset_inputs if d.tags[0].value == "inference"]
    assert source in inputs[0].source


def test_no_sample_row_is_logged_when_none_is_wanted(client: MlflowClient, facts: JobFacts) -> None:
    run = run_of(client, track(facts, sample_rows=0))
    assert "samples.json" not in [a.path for a in client.list_artifacts(run.info.run_id)]


def test_no_secret_reaches_the_store(folder: Path, client: MlflowClient, facts: JobFacts) -> None:
    secret = "hunter2hunter2"
    link = f"https://user:{secret}@store.example.com/t"
    leaky = replace(
        facts,
        params={"api_key": secret, "url": link},
        tags={"link": link},
        prompt=f"See {link}",
        source=replace(SOURCE, source=link),
        model=replace(MODEL, uri=link, location=link),
    )
    outcome = replace(OUTCOME, samples=({"text": link},), error=f"[JOB_FAILED] no answer from {link}")
    run_of(client, track(leaky, outcome))
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert any(p.name == "samples.json" for p in files)
    assert [p.name for p in files if secret.encode() in p.read_bytes()] == []


def test_a_long_value_is_cut_and_kept_whole_in_the_job_file(client: MlflowClient, facts: JobFacts) -> None:
    run = run_of(client, track(replace(facts, params={"choices{0}": "x" * 9000})))
    assert len(run.data.params["choices_0_"]) == 500
    assert json.loads(artifact(client, run, "job.json"))["params"]["choices{0}"] == "x" * 9000


def test_hundreds_of_parameters_arrive(client: MlflowClient, facts: JobFacts) -> None:
    run = run_of(client, track(replace(facts, params={f"p{i}": str(i) for i in range(250)})))
    assert run.data.params["p249"] == "249"


def test_a_failed_job_is_a_failed_run_with_its_error(client: MlflowClient, facts: JobFacts) -> None:
    run = run_of(client, track(facts, JobOutcome(status=RunStatus.FAILED, error="[DISK_FULL] no space left")))
    assert run.info.status == "FAILED"
    assert run.data.tags["sparkinfer.error"] == "[DISK_FULL] no space left"


@pytest.fixture
def users_mlflow(folder: Path) -> Iterator[str]:
    """The user's own MLflow state: a tracking URI set, a run open."""
    import mlflow

    before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    mlflow.set_tracking_uri(store.local_uri(folder))
    with mlflow.start_run() as run:
        yield run.info.run_id
    mlflow.set_tracking_uri(before)


def test_the_users_open_run_becomes_the_parent_and_stays_open(
    users_mlflow: str, client: MlflowClient, facts: JobFacts
) -> None:
    import mlflow

    run = run_of(client, track(replace(facts, tracking_uri=None, experiment=None)))
    assert run.data.tags["mlflow.parentRunId"] == users_mlflow
    assert run.info.experiment_id == client.get_run(users_mlflow).info.experiment_id
    active = mlflow.active_run()
    assert active is not None
    assert active.info.run_id == users_mlflow
    assert client.get_run(users_mlflow).data.params == {}


def test_the_environments_store_is_used_where_none_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import mlflow

    mlflow.set_tracking_uri(None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example.com")
    assert store.tracking_uri(None) == "http://mlflow.example.com"
    assert store.tracking_uri("sqlite:////x.db") == "sqlite:////x.db"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.chdir(tmp_path)
    assert store.tracking_uri(None) == f"sqlite:///{tmp_path}/mlflow.db"


def test_a_server_that_is_not_there_is_a_warning(facts: JobFacts) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # bound, not listening: connections are refused
        tracker = track(replace(facts, tracking_uri=f"http://user:hunter2@127.0.0.1:{port}"))
    assert tracker.run_id is None
    assert len(tracker.warnings) == 1
    assert "not affected" in tracker.warnings[0]
    assert "hunter2" not in tracker.warnings[0]


def test_a_server_that_never_answers_does_not_hold_the_job(facts: JobFacts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracker = MlflowTracker(finish_timeout_s=0.5)
        tracker.start(replace(facts, tracking_uri=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        assert tracker.finish(OUTCOME) is None
    assert "no answer within 0.5 s" in tracker.warnings[0]


def test_a_store_that_cannot_be_written_is_a_warning(facts: JobFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SQLITE_WAITS_S", ())
    tracker = track(replace(facts, tracking_uri="sqlite:////proc/nowhere/mlflow.db"))
    assert tracker.run_id is None
    assert "/proc/nowhere" in tracker.warnings[0]


def test_tracking_tables_runs_no_spark_job(spark: SparkSession, client: MlflowClient, facts: JobFacts) -> None:
    tracker = spark.sparkContext.statusTracker()
    spark.range(3).collect()
    before = tracker.getJobIdsForGroup()
    named = DatasetFacts(name="t", source="default.t", format="delta", version=1)
    run_of(client, track(replace(facts, source=named, output=replace(named, source="t"))))
    assert before
    assert tracker.getJobIdsForGroup() == before
