"""From the arguments of ``llm_udf`` to a pinned recipe: settings layered, model resolved once, hash known."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparkinfer import hashing
from sparkinfer.config.load import load_settings
from sparkinfer.config.specs import EngineSpec, TaskSpec
from sparkinfer.errors import InvalidConfig
from sparkinfer.model.resolution import resolve as resolve_model
from sparkinfer.udf.arguments import UdfArguments

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType

#: A recipe is a few kilobytes; beyond this something was captured that should be loaded by the executors instead.
MAX_RECIPE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedUdf:
    """Everything that travels to the executors, as plain data; the model's version is pinned.

    Attributes:
        engine: which engine.
        task: what to ask; ``task.config_hash`` is filled.
        logprobs: how many log-probabilities were asked for, None for none.
        fail_on_error: as given to ``llm_udf``.
        engine_mode: ``shared`` or ``inline``.
    """

    engine: EngineSpec
    task: TaskSpec
    logprobs: int | None = None
    fail_on_error: bool | None = None
    engine_mode: str = "shared"

    @property
    def is_struct(self) -> bool:
        """Whether the column is the whole struct (``fail_on_error=False``) and not the answer alone."""
        return self.fail_on_error is False

    def answer_column(
        self, columns: Sequence[Column | str], *, params: Column | str | None = None, deterministic: bool = True
    ) -> Column:
        """The UDF on columns in the order of the task's arguments, as ``fail_on_error`` has it."""
        from sparkinfer.udf.expression import apply

        return apply(self, columns, params=params, deterministic=deterministic)

    def struct_column(
        self,
        columns: Sequence[Column | str],
        *,
        params: Column | str | None = None,
        deterministic: bool = True,
        reads_all: bool = False,
    ) -> Column:
        """The whole struct, whatever ``fail_on_error`` says.

        Args:
            reads_all: the reader will take every row (a job does), so the window need not start small.
        """
        from sparkinfer.udf.expression import apply

        whole = replace(self, fail_on_error=False)
        return apply(whole, columns, params=params, deterministic=deterministic, reads_all=reads_all)

    def with_progress(self, folder: str | None) -> ResolvedUdf:
        """The same, with the folder where engines leave their live counters."""
        return replace(self, task=replace(self.task, progress_dir=folder))

    def with_segments(self, folder: str) -> ResolvedUdf:
        """The same, with the folder where engines put down what is finished."""
        return replace(self, task=replace(self.task, segments_dir=folder))

    def function(self) -> Callable[..., Any]:
        """The function that runs in the workers."""
        from sparkinfer.udf.expression import worker_function

        return worker_function(self, reads_all=False)

    def return_type(self) -> DataType:
        """Spark type of :meth:`answer_column`."""
        from sparkinfer.udf.expression import return_type

        return return_type(self)

    def eval_type(self) -> int:
        """Number that pyspark has for the kind of UDF."""
        from sparkinfer.udf.expression import eval_type

        return eval_type()


def resolve(arguments: UdfArguments, spark: SparkSession | None = None) -> ResolvedUdf:
    """Layer the settings, resolve and pin the model, and hash what can change an answer.

    Args:
        spark: None takes the active session, where there is one, for its ``spark.sparkinfer.*`` settings.

    Raises:
        InvalidConfig: no model anywhere, an unknown setting, or a recipe too large to travel.
        ModelError: the model does not exist or cannot be reached.
    """
    settings = load_settings(_keywords(arguments), spark_conf(spark), None)
    if settings.model is None:
        raise InvalidConfig(
            "No model is named: pass model= to llm_udf, set spark.sparkinfer.model, or write `model:` into conf/sparkinfer.yaml."
        )
    engine = EngineSpec(
        model=resolve_model(
            settings.model,
            trust_remote_code=arguments.trust_remote_code,
            tracking_uri=settings.tracking_uri,
            registry_uri=settings.registry_uri,
        ),
        dtype=arguments.dtype,
        trust_remote_code=arguments.trust_remote_code,
        fallback=arguments.fallback,
        settings=settings.engine,
    )
    task = _task(arguments)
    _refuse_large(engine, task)
    task = replace(task, config_hash=hashing.config_hash(hashing.config_of(engine, task)))
    return ResolvedUdf(
        engine=engine,
        task=task,
        logprobs=arguments.sampling.logprobs,
        fail_on_error=arguments.fail_on_error,
        engine_mode=arguments.engine_mode,
    )


def spark_conf(spark: SparkSession | None) -> dict[str, str]:
    """The session's ``spark.sparkinfer.*`` settings; empty without a session. Works in classic sessions and over Connect."""
    session = spark or active_session()
    if session is None:
        return {}
    if hasattr(session.conf, "getAll"):  # Spark 4.0
        pairs: Mapping[str, str] = session.conf.getAll
    else:
        pairs = {row["key"]: row["value"] for row in session.sql("SET").collect()}
    return {name: value for name, value in pairs.items() if name.startswith("spark.sparkinfer.")}


def active_session() -> SparkSession | None:
    """The running session, classic or Connect; None where there is none, without loading pyspark to find that out."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _keywords(arguments: UdfArguments) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    if arguments.model is not None:
        keywords["model"] = arguments.model
    if arguments.strict:
        keywords["engine"] = {"strict": True}
    return keywords


def _task(arguments: UdfArguments) -> TaskSpec:
    return TaskSpec(
        prompt=arguments.prompt,
        names=arguments.names,
        system=arguments.system,
        choices=arguments.choices,
        sampling=arguments.sampling,
        on_overflow=arguments.on_overflow,
        skip_blank=arguments.skip_blank,
        priority=arguments.priority,
    )


def _refuse_large(engine: EngineSpec, task: TaskSpec) -> None:
    size = len(engine.to_json()) + len(task.to_json())
    if size > MAX_RECIPE_BYTES:
        raise InvalidConfig(
            f"llm_udf: prompt, system text and choices take {size:,} bytes, and {MAX_RECIPE_BYTES:,} may travel with each task; "
            "pass long text as a column instead."
        )
