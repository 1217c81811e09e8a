"""Settings: frozen, complete, validated once, at the edge.

Those of the engine process size and pace it and change no answer, so they are not part of config_hash; where a running engine
meets a client with other ones, the running engine's win (a logged warning says so). Two are different: ``max_model_len`` decides
which prompts are too long and is part of config_hash, and ``strict`` decides what answers may depend on. A task that asks for
another value of these gets an engine of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any

from sparkinfer.errors import InvalidConfig

#: MLflow gets a look at the answers, not a copy of the table.
MAX_SAMPLE_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How the engine batches and what it may use. A line of doc a field."""

    block_size: int = 16
    """Tokens of one KV block."""
    kv_memory: int | None = None
    """Bytes for the KV pool; None: what the device or container leaves, see kv_fraction."""
    weights_memory: int | None = None
    """Bytes of weights that stay in the device's memory; the rest is read from host memory or disk in every step. None: all stay."""
    tensor_parallel: int = 1
    """Devices of one executor (processes, on a CPU) over which the model's weights are split."""
    kv_fraction: float = 0.5
    """Share of the memory that is free after the weights are loaded, where kv_memory is None."""
    max_model_len: int | None = None
    """Longest prompt + completion in tokens; None: the model's own context."""
    max_batch_tokens: int = 2048
    """Token budget of one step, prefill and decode together."""
    max_batch_size: int = 256
    """Sequences of one step."""
    window: int = 4096
    """Waiting requests among which buckets are formed."""
    batch_timeout_ms: int = 20
    """How long a batch that is not full waits for more rows before it is closed."""
    prefix_cache: bool = True
    """Keep the KV blocks of finished prompts for prompts that begin alike."""
    guess_tokens: int = 16
    """A step of fewer tokens is filled up to so many with guesses of what comes next (greedy answers stay the same); 0: never."""
    compile_budget_s: float = 0.0
    """Seconds that may be spent, once for a structure of model, to find out whether torch.compile makes steps faster; 0: it is not used."""
    strict: bool = False
    """Pad to fixed shapes, so that an answer cannot depend on its neighbours by rounding."""
    threads: int | None = None
    """CPU threads of the engine; None: the cores of the executor."""
    device: str = "auto"
    """auto (GPU of the task, else CPU) | cpu | cuda | cuda:N."""
    idle_timeout_s: float = 600.0
    """The engine ends after so long without a client."""
    start_timeout_s: float = 600.0
    """How long a client waits for an engine to become ready."""
    stall_timeout_s: float = 300.0
    """How long a step may take before the engine counts as hung."""
    memo_bytes: int = 64 * 1024 * 1024
    """Answers kept in memory; more spill to the executor's local folder."""
    memo: bool = True
    """Give an equal (input, config) its stored answer; off only in benchmarks."""
    max_deaths: int = 3
    """Engine deaths without progress after which its rows fail with ENGINE_DIED."""
    retries: int = 3
    """How often a row is tried again that failed for a reason that may pass, such as OUT_OF_MEMORY."""
    retry_base_s: float = 1.0
    """Seconds before the first of them; each later pause is twice as long."""

    def __post_init__(self) -> None:
        for name in ("block_size", "max_batch_tokens", "max_batch_size", "window", "max_deaths", "tensor_parallel"):
            self._check_count(name, 1)
        for name in ("kv_memory", "weights_memory", "max_model_len", "threads"):
            if getattr(self, name) is not None:
                self._check_count(name, 1)
        for name in ("batch_timeout_ms", "guess_tokens", "memo_bytes", "retries"):
            self._check_count(name, 0)
        self._check_seconds()
        if self.tensor_parallel > 1 and self.weights_memory is not None:
            raise InvalidConfig("engine settings tensor_parallel and weights_memory cannot be had together; name one.")
        if not 0.0 < self.kv_fraction <= 1.0:
            raise InvalidConfig(f"engine setting kv_fraction must be above 0 and at most 1, not {self.kv_fraction!r}.")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise InvalidConfig(f"engine setting device must be auto, cpu, cuda or cuda:N, not {self.device!r}.")

    def _check_seconds(self) -> None:
        if not 0.0 <= self.retry_base_s < float("inf"):
            raise InvalidConfig(
                f"engine setting retry_base_s must be seconds of at least 0, not {self.retry_base_s!r}."
            )
        if not 0.0 <= self.compile_budget_s < float("inf"):
            raise InvalidConfig(
                f"engine setting compile_budget_s must be seconds of at least 0, not {self.compile_budget_s!r}."
            )
        if self.compile_budget_s >= self.start_timeout_s:
            raise InvalidConfig(
                f"engine setting compile_budget_s ({self.compile_budget_s:g} s) must be shorter than start_timeout_s "
                f"({self.start_timeout_s:g} s), for an engine is not ready before its trial has ended."
            )
        for name in ("idle_timeout_s", "start_timeout_s", "stall_timeout_s"):
            if not getattr(self, name) > 0:
                raise InvalidConfig(f"engine setting {name} must be seconds above 0, not {getattr(self, name)!r}.")

    def _check_count(self, name: str, low: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise InvalidConfig(f"engine setting {name} must be a whole number of at least {low}, not {value!r}.")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingSettings:
    """What a job writes into MLflow. A line of doc a field."""

    enabled: bool = True
    """One MLflow run per job; false: none."""
    sample_rows: int = 20
    """Result rows logged as a table (they hold texts), at most 20; 0: none."""

    def __post_init__(self) -> None:
        if not 0 <= self.sample_rows <= MAX_SAMPLE_ROWS:
            raise InvalidConfig(
                f"tracking setting sample_rows must be from 0 to {MAX_SAMPLE_ROWS}, not {self.sample_rows!r}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be said once for many UDFs and jobs. A line of doc a field."""

    model: str | None = None
    """Model of an llm_udf that names none."""
    tracking_uri: str | None = None
    """MLflow tracking store; None: what MLflow is set to, else a local sqlite file."""
    registry_uri: str | None = None
    """MLflow model registry; None: the tracking store's."""
    experiment: str | None = None
    """MLflow experiment of a job that names none."""
    staging: str | None = None
    """Folder for staged answers of jobs that name none; None: beside the table."""
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    """What a job writes into MLflow."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    """How the engine batches and what it may use."""
