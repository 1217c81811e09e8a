"""Offline LLM inference as a Spark library: one engine per executor, every row accounted for, results in Delta.

    from sparkinfer import llm_udf
    df.withColumn("label", llm_udf(col("text")))

Importing this package imports nothing heavy: each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkinfer import errors
    from sparkinfer.job.run import run
    from sparkinfer.job.status import status
    from sparkinfer.types import SamplingParams
    from sparkinfer.udf.functions import llm_udf
    from sparkinfer.udf.lint import lint
    from sparkinfer.udf.session import session

__version__ = "0.1.0"

__all__ = ["SamplingParams", "errors", "lint", "llm_udf", "run", "session", "status"]

#: Public name -> the module that defines it.
_HOMES = {
    "SamplingParams": "sparkinfer.types",
    "lint": "sparkinfer.udf.lint",
    "llm_udf": "sparkinfer.udf.functions",
    "run": "sparkinfer.job.run",
    "session": "sparkinfer.udf.session",
    "status": "sparkinfer.job.status",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("sparkinfer.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'sparkinfer' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
