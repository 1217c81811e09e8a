"""A job as a file, for ``sparkinfer run job.yaml``: the keys are the arguments of ``run()``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from sparkinfer.config.document import Document, build, read_yaml
from sparkinfer.config.duration import seconds_of
from sparkinfer.config.settings import TrackingSettings
from sparkinfer.errors import InvalidConfig, InvalidParams
from sparkinfer.types import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class UdfConfig:
    """The section ``udf``: the arguments of :func:`sparkinfer.llm_udf`, with its defaults."""

    model: str | None = None
    prompt: str | None = None
    system: str | None = None
    choices: tuple[str, ...] | None = None
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] | None = None
    seed: int | None = 0
    logprobs: int | None = None
    ignore_eos: bool = False
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    on_overflow: Literal["error", "truncate_left", "truncate_right", "truncate_middle", "skip"] = "error"
    skip_blank: bool = False
    dtype: Literal["auto", "fp32", "bf16", "fp16", "int8", "fp8", "int4"] = "auto"
    priority: int = 0
    strict: bool = False
    fallback: bool = True
    trust_remote_code: bool = False
    engine_mode: Literal["shared", "inline"] = "shared"
    fail_on_error: bool | None = None

    def __post_init__(self) -> None:
        try:
            SamplingParams(**{f.name: getattr(self, f.name) for f in fields(SamplingParams)})
        except InvalidParams as error:
            raise InvalidConfig(error.message) from error

    def keywords(self) -> dict[str, Any]:
        """All of them, ready for ``llm_udf(**keywords)``."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """A whole job. Paths are relative to the current folder.

    Attributes:
        source: table name or path.
        into: table name or path.
        columns: template argument -> column of the source; None: columns of the same names.
        key: columns that name a row; empty: the hash of the whole row.
        keep: columns of the source to keep in the result.
        output: name of the answer's column.
        udf: what to ask.
        spark: settings of the session.
        experiment: MLflow experiment.
        mode: ``latest`` (one row per key) or ``append`` (one per key, input and configuration).
        retry_failed: ask again for rows that failed before.
        deadline: how long the job may take: ``2h``, ``90m``, ``45s``, or seconds as a number.
        cache: table name or path of the answers that jobs share.
        staging: folder for staged answers.
        fail_on_error: end with an error when rows failed, after the good ones are committed; None: the udf's.
        tracking_uri: MLflow store.
        registry_uri: MLflow model registry.
        tracking: what goes into MLflow; None: as the settings have it.
    """

    source: str
    into: str
    udf: UdfConfig = field(default_factory=UdfConfig)
    columns: dict[str, str] | None = None
    key: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    output: str = "result"
    spark: dict[str, str] = field(default_factory=dict)
    experiment: str | None = None
    mode: Literal["latest", "append"] = "latest"
    retry_failed: bool = False
    deadline: str | float | None = None
    cache: str | None = None
    staging: str | None = None
    fail_on_error: bool | None = None
    tracking_uri: str | None = None
    registry_uri: str | None = None
    tracking: TrackingSettings | None = None

    def __post_init__(self) -> None:
        if self.deadline is not None:
            seconds_of(self.deadline, name="deadline")


def load_job(path: Path | str) -> JobConfig:
    """Read and validate a job file.

    Raises:
        InvalidConfig: names the key and the line.
    """
    document = read_yaml(Path(path))
    _as_list(document, ("key", "keep"))
    udf = document.values.get("udf")
    if isinstance(udf, dict):
        _as_list(Document(udf, {}), ("stop",))
    _spark_texts(document)
    return build(JobConfig, document)


def _as_list(document: Document, names: tuple[str, ...]) -> None:
    """``key: id`` means ``key: [id]``."""
    for name in names:
        if isinstance(value := document.values.get(name), str):
            document.values[name] = [value]


def _spark_texts(document: Document) -> None:
    """Spark settings are text; YAML's numbers and booleans are written as Spark writes them."""
    section = document.values.get("spark")
    if section is None:
        document.values.pop("spark", None)
        return
    if not isinstance(section, dict):
        return  # the validation says what it must be
    for name, value in section.items():
        if isinstance(value, dict | list) or value is None:
            raise InvalidConfig(
                f"{document.place(('spark', name))}: spark.{name} must be one value; write the setting's whole name on one line, "
                'such as `spark.master: "local[2]"`.'
            )
        section[name] = str(value).lower() if isinstance(value, bool) else str(value)
