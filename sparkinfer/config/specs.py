"""What crosses from the driver to the workers and on to the engine process: small recipes, never objects.

Both specs are frozen dataclasses of builtins and travel as JSON (never pickled on the socket).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkinfer.config.settings import EngineSettings
from sparkinfer.types import ModelRef, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Which engine: one process per (executor, this, device set).

    dtype is the asked-for class: ``auto | fp32 | bf16 | fp16 | int8 | fp8 | int4``. task_gpus are the addresses that Spark gave the running
    task; the worker fills them in, and the device set that they make is part of the engine's key.
    """

    model: ModelRef
    dtype: str = "auto"
    trust_remote_code: bool = False
    fallback: bool = True
    settings: EngineSettings = field(default_factory=EngineSettings)
    task_gpus: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, ...]:
        """What makes two engines different: what can change an answer. Of other settings the running engine's win."""
        return (
            self.model.fingerprint,
            self.model.location,
            self.dtype,
            str(self.trust_remote_code),
            str(self.fallback),
            str(self.settings.strict),
            str(self.settings.max_model_len),
        )

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> EngineSpec:
        """The inverse of :meth:`to_json`."""
        raw: dict[str, Any] = json.loads(text)
        raw["model"] = ModelRef(**raw["model"])
        raw["settings"] = EngineSettings(**raw["settings"])
        raw["task_gpus"] = tuple(raw["task_gpus"])
        return cls(**raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What to ask: everything of one ``llm_udf`` that turns a row's values into a prompt and tokens into an answer.

    Attributes:
        prompt: template with ``{name}`` arguments; None: the one argument is the user message (or the chat messages).
        names: the template's arguments in order of first appearance; the order of ``Request.values``.
        system: system message, or None.
        choices: closed list of answers, or None.
        sampling: the task's parameters; a row's ``params`` go over them.
        on_overflow: ``error | truncate_left | truncate_right | truncate_middle | skip``.
        skip_blank: prompt columns that are all blank are skipped like all-null ones.
        priority: higher is served first.
        template_kwargs: passed to the chat template (``enable_thinking`` ...).
        clock: ISO date that chat templates see as today, so that prompts do not change overnight.
        config_hash: see :mod:`sparkinfer.hashing`; with the input hash it is the key of an answer.
        progress_dir: folder where the engine process leaves its live counters for a job's progress display, or None.
        segments_dir: path or Arrow URI of the folder where the engine process puts down what is finished within seconds, or None.
    """

    prompt: str | None
    names: tuple[str, ...]
    system: str | None = None
    choices: tuple[str, ...] | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    on_overflow: str = "error"
    skip_blank: bool = False
    priority: int = 0
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    clock: str = "2026-01-01"
    config_hash: str = ""
    progress_dir: str | None = None
    segments_dir: str | None = None

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> TaskSpec:
        """The inverse of :meth:`to_json`."""
        raw: dict[str, Any] = json.loads(text)
        raw["names"] = tuple(raw["names"])
        raw["choices"] = None if raw["choices"] is None else tuple(raw["choices"])
        raw["sampling"] = SamplingParams.from_dict(raw["sampling"])
        return cls(**raw)
