"""An open MLflow run and how a job's facts and outcome are written into it."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from sparkinfer.tracking import store
from sparkinfer.tracking.base import DatasetFacts, JobFacts, JobOutcome, Scalar
from sparkinfer.tracking.datasets import dataset_input
from sparkinfer.tracking.redact import redact, redact_text

if TYPE_CHECKING:
    from mlflow import MlflowClient

#: Servers of older MLflow versions and file stores take no longer values; job.json holds them whole.
MAX_PARAM_CHARS = 500
MAX_TAG_CHARS = 5000
MAX_KEY_CHARS = 250
PARAMS_A_BATCH = 100

#: Told what was not written and why.
OnFailure = Callable[[str, Exception], None]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """One run of one store. Each part is written by itself: where one fails, the others still arrive."""

    client: MlflowClient
    uri: str
    run_id: str
    on_failure: OnFailure

    def log_facts(self, facts: JobFacts) -> None:
        """Parameters, templates, the whole settings as ``job.json``, and the source table."""
        self._attempt("parameters", lambda: self._log_params(facts))
        self._attempt("templates", lambda: self._log_texts(facts))
        self._attempt("source dataset", lambda: self._log_dataset(facts.source, "inference"))

    def log_metrics(self, metrics: Mapping[str, float], *, step: int = 0, timestamp_ms: int | None = None) -> None:
        """Figures by name; what is not finite is left out."""
        from mlflow.entities import Metric

        when = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        entries = [Metric(_key(n), float(v), when, step) for n, v in metrics.items() if math.isfinite(v)]
        self._attempt("metrics", lambda: self.client.log_batch(self.run_id, metrics=entries))

    def log_outcome(self, facts: JobFacts, outcome: JobOutcome, *, sample_rows: int) -> None:
        """Final figures, the result table with its version, failures, samples; then the run is closed."""
        failed = {f"failed.{code}": float(count) for code, count in outcome.failures.items()}
        self.log_metrics({**outcome.metrics, **failed})
        written = replace(facts.output, version=outcome.output_version)
        self._attempt("output dataset", lambda: self._log_dataset(written, "output"))
        self._attempt("failures", lambda: self._log_failures(outcome))
        self._attempt("samples", lambda: self._log_samples(outcome.samples[:sample_rows]))
        self._attempt("tags", lambda: self._log_outcome_tags(outcome))
        self._attempt("status", lambda: self.client.set_terminated(self.run_id, status=outcome.status.value))

    def _attempt(self, what: str, write: Callable[[], object]) -> None:
        try:
            store.retrying(self.uri, write)
        except Exception as error:
            self.on_failure(f"{what} not written", error)

    def _log_params(self, facts: JobFacts) -> None:
        from mlflow.entities import Param

        params = [Param(_key(name), _cut(value, MAX_PARAM_CHARS)) for name, value in _params(facts).items()]
        for first in range(0, len(params), PARAMS_A_BATCH):
            self.client.log_batch(self.run_id, params=params[first : first + PARAMS_A_BATCH])

    def _log_texts(self, facts: JobFacts) -> None:
        for name, text in (("prompt", facts.prompt), ("system", facts.system)):
            if text is not None:
                self.client.log_text(self.run_id, redact_text(text), f"templates/{name}.txt")
        whole = {"params": _params(facts), "model": redact({k: str(v) for k, v in asdict(facts.model).items()})}
        self.client.log_text(self.run_id, json.dumps(whole, indent=2, ensure_ascii=False), "job.json")

    def _log_dataset(self, table: DatasetFacts, context: str) -> None:
        self.client.log_inputs(self.run_id, datasets=[dataset_input(table, context=context)])

    def _log_failures(self, outcome: JobOutcome) -> None:
        if outcome.failures:
            self.client.log_dict(self.run_id, dict(outcome.failures), "failures.json")

    def _log_samples(self, rows: tuple[Mapping[str, Scalar], ...]) -> None:
        if rows:
            names = dict.fromkeys(name for row in rows for name in row)
            table = {name: [_cell(row.get(name)) for row in rows] for name in names}
            self.client.log_table(self.run_id, data=table, artifact_file="samples.json")

    def _log_outcome_tags(self, outcome: JobOutcome) -> None:
        if outcome.output_version is not None:
            self.client.set_tag(self.run_id, "sparkinfer.table_version", str(outcome.output_version))
        if outcome.error:
            self.client.set_tag(self.run_id, "sparkinfer.error", _cut(redact_text(outcome.error), MAX_TAG_CHARS))


def open_run(facts: JobFacts, parent: store.ParentRun | None, on_failure: OnFailure) -> OpenRun:
    """Create the job's run: below the user's own where one is open in the same store.

    Raises:
        Exception: whatever the store raises.
    """
    from mlflow.tracking.context.registry import resolve_tags

    uri = store.tracking_uri(facts.tracking_uri)
    client = store.open_client(uri)
    above = parent if parent is not None and store.has_run(client, parent.run_id) else None
    if above is not None and facts.experiment is None:
        experiment = above.experiment_id
    else:
        experiment = store.retrying(uri, lambda: store.experiment_id(client, uri, facts.experiment))
    tags = resolve_tags(_tags(facts) | ({"mlflow.parentRunId": above.run_id} if above else {}))
    run = store.retrying(uri, lambda: client.create_run(experiment, tags=tags, run_name=facts.job))
    return OpenRun(client, uri, str(run.info.run_id), on_failure)


def _params(facts: JobFacts) -> dict[str, str]:
    """Every setting, and what identifies model, templates and tables; secrets masked."""
    known = {
        "model": facts.model.uri,
        "model_name": facts.model.name,
        "model_version": facts.model.version,
        "model_fingerprint": facts.model.fingerprint,
        "config_hash": facts.config_hash,
        "prompt": facts.prompt,
        "system": facts.system,
        "source": facts.source.source,
        "into": facts.output.source,
    }
    return redact({**facts.params, **{name: value for name, value in known.items() if value}})


def _tags(facts: JobFacts) -> dict[str, str]:
    known = {
        "sparkinfer.version": version("sparkinfer"),
        "sparkinfer.run_key": facts.run_key,
        "sparkinfer.model_version": facts.model.version,
        "sparkinfer.config_hash": facts.config_hash,
    }
    return {_key(name): _cut(value, MAX_TAG_CHARS) for name, value in redact({**facts.tags, **known}).items()}


def _key(name: str) -> str:
    """The name with what some store refuses replaced."""
    return re.sub(r"[^\w\-./ ]", "_", name)[:MAX_KEY_CHARS]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _cell(value: Scalar) -> Scalar:
    return redact_text(value) if isinstance(value, str) else value
