"""``llm_udf``: a column expression that runs a language model inside the executors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sparkinfer.errors import InvalidConfig, MissingColumn
from sparkinfer.hashing import PARAMS_NAME
from sparkinfer.udf.arguments import UdfArguments, checked_sampling
from sparkinfer.udf.resolve import ResolvedUdf, resolve

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType


def llm_udf(
    *columns: Column | str,
    model: str | None = None,
    prompt: str | None = None,
    system: str | None = None,
    choices: Sequence[str] | None = None,
    max_tokens: int = 256,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    stop: str | Sequence[str] | None = None,
    seed: int | None = 0,
    logprobs: int | None = None,
    ignore_eos: bool = False,
    repetition_penalty: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    on_overflow: str = "error",
    skip_blank: bool = False,
    dtype: str = "auto",
    priority: int = 0,
    strict: bool = False,
    fallback: bool = True,
    trust_remote_code: bool = False,
    engine_mode: str = "shared",
    fail_on_error: bool | None = None,
) -> Any:
    """Run a model on columns: with columns, the answer's Column; with keywords alone, a reusable :class:`LlmUdf`.

    Nothing is loaded here. The first call on columns resolves the model's place on the driver and pins its version; the
    executors load it when the first row needs it.

    Args:
        columns: the template's arguments in order; a str is a column name.
        model: hub id[@revision], folder, file.gguf, ``models:/name/3``, ``models:/name@alias`` or ``sample``; None: Spark conf
            ``spark.sparkinfer.model`` or conf/sparkinfer.yaml.
        prompt: template with arguments in braces, ``{{`` and ``}}`` escape; None: the one column is the user message
            (or an array of chat messages).
        system: system message.
        choices: only one of these can come out.
        max_tokens: longest answer in tokens.
        temperature: 0 takes the best token; above it tokens are drawn from (seed, input, position).
        top_p: draw from the likeliest tokens that hold this probability.
        top_k: draw from this many likeliest tokens; 0: all.
        min_p: draw from tokens at least this likely relative to the best.
        stop: text that ends the answer and is not part of it.
        seed: None draws anew each time; Spark then counts the column as non-deterministic.
        logprobs: adds the field ``logprobs`` to the struct.
        ignore_eos: go on to max_tokens.
        repetition_penalty: None: the model's own.
        presence_penalty: takes from the score of tokens that came before.
        frequency_penalty: the same, for each time they came.
        on_overflow: ``error | truncate_left | truncate_right | truncate_middle | skip`` where a prompt does not fit.
        skip_blank: rows whose prompt columns are all blank are skipped, as rows of nulls are.
        dtype: ``auto | fp32 | bf16 | fp16 | int8 | fp8 | int4``; auto is fp32 on a CPU and bf16 on a GPU; the last
            three round the weights of linear layers and take less memory; fp8 needs a GPU that multiplies it.
        priority: higher is served first.
        strict: pad to fixed shapes, so that no answer depends on its neighbours by rounding.
        fallback: let models that cannot be packed run on the slower always-right path.
        trust_remote_code: let a model's own Python code run.
        engine_mode: ``shared``: one engine per executor; ``inline``: the engine in the Python worker.
        fail_on_error: False: the column is the whole struct, with the row's error in it; True, None: the answer alone, and
            a failed row fails the task.

    Raises:
        InvalidConfig: an argument of the wrong type or out of its range.
        InvalidTemplate: a prompt that cannot be parsed.
    """
    sampling = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "stop": list(stop) if isinstance(stop, tuple) else stop,
        "seed": seed,
        "logprobs": logprobs,
        "ignore_eos": ignore_eos,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
    }
    udf = LlmUdf(
        UdfArguments(
            model=model,
            prompt=prompt,
            system=system,
            choices=choices,  # type: ignore[arg-type]  # made a tuple there
            sampling=checked_sampling(sampling),
            on_overflow=on_overflow,
            skip_blank=skip_blank,
            dtype=dtype,
            priority=priority,
            strict=strict,
            fallback=fallback,
            trust_remote_code=trust_remote_code,
            engine_mode=engine_mode,
            fail_on_error=fail_on_error,
        )
    )
    return udf(*columns) if columns else udf


class LlmUdf:
    """A reusable UDF: call it on columns, or ``spark.udf.register("label", label)`` it for SQL (positional there).

    It looks like a pyspark UserDefinedFunction (``func``, ``returnType``, ``evalType``, ``deterministic``), which is what
    ``spark.udf.register`` asks for, in classic sessions and over Connect.
    """

    def __init__(self, arguments: UdfArguments) -> None:
        self.arguments = arguments
        self._resolved: ResolvedUdf | None = None
        self._forced_nondeterministic = False

    def __call__(self, *columns: Column | str, **named: Column | str) -> Column:
        """The answer's column; ``params=`` takes a struct or map column of per-row sampling parameters.

        Raises:
            MissingColumn: an argument without a column.
            InvalidConfig: more columns than arguments, or names that the prompt does not have.
        """
        ordered, params = self._ordered(columns, named)
        resolved = self.resolve()
        return resolved.answer_column(ordered, params=params, deterministic=self.deterministic)

    def struct(self, *columns: Column | str, **named: Column | str) -> Column:
        """The whole result struct as a column, whatever ``fail_on_error`` says. Raises as :meth:`__call__` does."""
        ordered, params = self._ordered(columns, named)
        return self.resolve().struct_column(ordered, params=params, deterministic=self.deterministic)

    def resolve(self, spark: SparkSession | None = None) -> ResolvedUdf:
        """The pinned recipe; the first call resolves the model on the driver, later ones give the same.

        Raises:
            InvalidConfig: no model is named anywhere, or the recipe is too large to travel.
            ModelError: the model does not exist or cannot be reached.
        """
        if self._resolved is None:
            self._resolved = resolve(self.arguments, spark)
        return self._resolved

    @property
    def names(self) -> tuple[str, ...]:
        """The prompt's arguments in order."""
        return self.arguments.names

    @property
    def deterministic(self) -> bool:
        """Whether Spark may evaluate the column twice, merge equal calls and push filters below it."""
        return self.arguments.sampling.is_deterministic and not self._forced_nondeterministic

    @property
    def func(self) -> Callable[..., Any]:
        """The function that runs in the workers (as pyspark's UDF objects have it)."""
        return self.resolve().function()

    @property
    def returnType(self) -> DataType:  # noqa: N802 - pyspark's name
        """Spark type of the column (as pyspark's UDF objects have it)."""
        return self.resolve().return_type()

    @property
    def evalType(self) -> int:  # noqa: N802 - pyspark's name
        """Kind of the UDF (as pyspark's UDF objects have it)."""
        return self.resolve().eval_type()

    def asNondeterministic(self) -> LlmUdf:  # noqa: N802 - pyspark's name
        """A UDF like this one that Spark may not evaluate twice (nor merge, nor use in joins and aggregates)."""
        twin = copy.copy(self)
        twin._forced_nondeterministic = True
        return twin

    def __repr__(self) -> str:
        return f"LlmUdf(model={self.arguments.model!r}, arguments={list(self.names)})"

    def _ordered(
        self, columns: Sequence[Column | str], named: dict[str, Column | str]
    ) -> tuple[list[Column | str], Column | str | None]:
        names = self.names
        params = named.pop(PARAMS_NAME, None)
        if len(columns) > len(names):
            raise InvalidConfig(
                f"llm_udf: {len(columns)} columns for the arguments {list(names)}; pass params by name."
            )
        given = dict(zip(names, columns, strict=False))
        for name, column in given.items():
            if isinstance(column, str) and column != name and column in names:
                raise InvalidConfig(
                    f"llm_udf: by position {name} would get the column {column!r}, and the prompt has an argument of that name; "
                    f"columns follow the order of the braces {list(names)}. Name them: {names[0]}=..., {names[-1]}=...."
                )
        unknown = sorted(set(named) - set(names))
        if unknown:
            raise InvalidConfig(f"llm_udf: the prompt has no {unknown}; its arguments are {list(names)}.")
        twice = sorted(set(named) & set(given))
        if twice:
            raise InvalidConfig(f"llm_udf: {twice} given by position and by name.")
        given |= named
        missing = [name for name in names if name not in given]
        if missing:
            raise MissingColumn(f"llm_udf: the prompt needs columns for {missing}; its arguments are {list(names)}.")
        return [given[name] for name in names], params
