"""Settings of the engine process: frozen, complete, validated once, at the edge.

These size and pace the engine; they never change an answer, so they are not part of config_hash. Where a running engine
meets a client with other settings, the running engine's win (a logged warning says so).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from sparkinfer.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How the engine batches and what it may use. A line of doc a field."""

    block_size: int = 16
    """Tokens of one KV block."""
    kv_memory: int | None = None
    """Bytes for the KV pool; None: what the device or container leaves, see kv_fraction."""
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

    def __post_init__(self) -> None:
        for name in ("block_size", "max_batch_tokens", "max_batch_size", "window", "max_deaths"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InvalidConfig(f"engine setting {name} must be a whole number above 0, not {getattr(self, name)!r}.")
        if not 0.0 < self.kv_fraction <= 1.0:
            raise InvalidConfig(f"engine setting kv_fraction must be above 0 and at most 1, not {self.kv_fraction!r}.")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
