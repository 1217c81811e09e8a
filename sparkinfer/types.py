"""The nouns that travel between the layers. Plain data: no Spark, no torch, no Arrow."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from sparkinfer.errors import InvalidParams


class FinishReason(str, Enum):
    """Why a completion ended."""

    STOP = "stop"
    LENGTH = "length"
    SKIPPED = "skipped"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn. Validated when made; a wrong value raises InvalidParams.

    temperature 0 is greedy. ``seed`` None draws anew each time (the only setting that is not repeatable).
    ``repetition_penalty`` None is the model's own generation_config.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int | None = 0
    logprobs: int | None = None
    ignore_eos: bool = False
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.stop, list):
            object.__setattr__(self, "stop", tuple(self.stop))  # JSON has no tuples
        elif isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        elif self.stop is None:
            object.__setattr__(self, "stop", ())
        _check_int("max_tokens", self.max_tokens, 1, 10_000_000)
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_int("top_k", self.top_k, 0)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _check_int("seed", self.seed, -(2**63), 2**63 - 1)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, 20)
        if self.repetition_penalty is not None:
            _check_float("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidParams(f"ignore_eos must be true or false, not {self.ignore_eos!r}.")
        if not isinstance(self.stop, tuple) or not all(isinstance(text, str) and text for text in self.stop):
            raise InvalidParams(f"stop must be a non-empty string or a list of them, not {self.stop!r}.")

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken without drawing."""
        return self.temperature == 0.0

    @property
    def is_deterministic(self) -> bool:
        """Whether the same input always gives the same answer."""
        return self.is_greedy or self.seed is not None

    def merged(self, params_json: str | None) -> SamplingParams:
        """These parameters with a row's own ones over them.

        Args:
            params_json: canonical JSON object of the row's ``params`` struct; None or null fields leave the task's value.

        Raises:
            InvalidParams: unknown names, wrong types, values out of range, not a JSON object.
        """
        if params_json is None:
            return self
        try:
            given = json.loads(params_json)
        except ValueError as error:
            raise InvalidParams(f"params is not JSON: {error}. Pass a struct or a JSON object.") from error
        if not isinstance(given, dict):
            raise InvalidParams('params must be a JSON object such as {"max_tokens": 16}.')
        known = {f.name for f in fields(self)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise InvalidParams(f"params has unknown names {unknown}; known are {sorted(known)}.")
        return replace(self, **{k: _exact_float(v) if k in _FLOATS else v for k, v in given.items() if v is not None})

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values, every field present."""
        return {f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """The inverse of :meth:`to_dict`."""
        return cls(**values)


#: Parameters that canonical JSON carries as the hexadecimal text of a 64-bit float (``"0x1.8p0"``, see hashing.py).
_FLOATS = frozenset({"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"})


def _exact_float(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip("-").startswith("0x"):
        try:
            return float.fromhex(value)
        except ValueError:
            return value
    return value


def _check_int(name: str, value: object, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidParams(f"{name} must be a whole number, not {value!r}.")
    if value < low or (high is not None and value > high):
        raise InvalidParams(
            f"{name} must be at least {low}" + (f" and at most {high}" if high is not None else "") + f", not {value}."
        )


def _check_float(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidParams(f"{name} must be a finite number, not {value!r}.")
    if value < low or value > high or (open_low and value == low):
        raise InvalidParams(
            f"{name} must be {'above' if open_low else 'at least'} {low} and at most {high}, not {value}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """A model resolved once on the driver and pinned: executors get exactly this.

    Attributes:
        uri: what the user wrote.
        name: ``model_name`` in each row, for people.
        version: ``model_version`` in each row: hub commit, registry version, or the fingerprint's first 12 digits.
        fingerprint: SHA-256 over what the weights, tokenizer and config are.
        kind: ``hub | folder | gguf | mlflow | sample | fake``.
        location: hub id, absolute path, or pinned ``models:/name/3``; what :func:`sparkinfer.model.fetch` reads.
        revision: hub commit, where there is one.
        tracking_uri: MLflow store that a registered model was found in; executors have no setting of their own.
        registry_uri: the same of the registry.
    """

    uri: str
    name: str
    version: str
    fingerprint: str
    kind: str
    location: str
    revision: str | None = None
    tracking_uri: str | None = None
    registry_uri: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One row on its way to the engine process.

    Attributes:
        row: the client's own number for it, unique per client; the completion carries it back.
        values: the template's arguments in template order as canonical text, None where null.
        tags: one character per value: ``s`` string, ``i`` integer, ``b`` boolean, ``d`` date, ``n`` decimal,
            ``m`` messages as canonical JSON, ``0`` null.
        input_hash: SHA-256 hex, see :mod:`sparkinfer.hashing`.
        params_json: canonical JSON of the row's own sampling parameters.
        warnings: found while reading the row (``INVALID_UTF8``); carried into the completion.
    """

    row: int
    values: tuple[str | None, ...]
    tags: str
    input_hash: str
    params_json: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one completion. cached_tokens: of the prompt's, how many the prefix cache gave."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The answer to one request; success where ``error_code`` is None.

    ``inferred_at`` is seconds since the epoch (UTC). ``logprobs`` is, per token, the chosen token's log-probability.
    """

    row: int
    input_hash: str
    result: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    finish_reason: FinishReason = FinishReason.STOP
    raw_text: str | None = None
    warnings: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    queue_ms: int = 0
    latency_ms: int = 0
    attempts: int = 1
    engine: str = ""
    inferred_at: float = 0.0
    details: Mapping[str, str] = field(default_factory=dict)
    logprobs: tuple[float, ...] | None = None

    @property
    def ok(self) -> bool:
        """Whether the row has an answer (or was skipped on purpose)."""
        return self.error_code is None
