"""The arguments of one ``run()``, checked against the source before anything runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkinfer.errors import InvalidConfig, MissingColumn, ReservedColumn, TableSchemaMismatch, WrongColumnType
from sparkinfer.schema import JOB_COLUMNS, reserved_columns, result_fields
from sparkinfer.sink.base import TableColumn, TableFacts

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MODES = ("latest", "append")
PARAMS = "params"
#: Characters that a Delta column name cannot hold without column mapping.
_BAD_NAME = re.compile(r"[ ,;{}()\n\t=]")
#: Columns that a job's own queries add while it runs.
INTERNAL = re.compile(
    r"__(occurrence|identity|null_key|state|old_bucket|old_input|old_config|old_failed|from_bucket|doubled|params|length|age"
    r"|was_absent|paid|answer|origin|rank|arg_\d+)",
    re.IGNORECASE,
)
#: In the name of a type that Delta cannot hold.
_NO_DELTA_TYPE = re.compile(r"\b(void|interval|collate)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What one job reads from its source and writes into its table.

    Attributes:
        arguments: the UDF's arguments in their order, each with the source column that it reads.
        params: source column with per-row sampling parameters, or None.
        key: columns that name a row; empty: all columns do, with an occurrence number.
        kept: key and kept columns in the order of the result table.
        output: the answer's column.
        mode: ``latest`` or ``append``.
        retry_failed: ask again for rows that failed before.
        logprobs: whether the result has them.
    """

    arguments: tuple[tuple[str, str], ...]
    params: str | None
    key: tuple[str, ...]
    kept: tuple[str, ...]
    output: str
    mode: str
    retry_failed: bool
    logprobs: bool

    @property
    def merge_keys(self) -> tuple[str, ...]:
        """Columns in which a new row and the older one that it replaces are equal."""
        return ("row_key",) if self.mode == "latest" else ("row_key", "input_hash", "config_hash")

    def table_columns(self, schema: StructType) -> tuple[TableColumn, ...]:
        """The result table's columns: key and kept ones, the output, the struct's, the job's."""
        kept = tuple(TableColumn(name=name, ddl=schema[name].dataType.simpleString()) for name in self.kept)
        answer = tuple(
            TableColumn(name=self.output if f.column == "result" else f.column, ddl=f.ddl)
            for f in result_fields(logprobs=self.logprobs)
        )
        return (*kept, *answer, *(TableColumn(name=name, ddl=ddl) for name, ddl in JOB_COLUMNS))


def check_spec(
    schema: StructType,
    *,
    names: Sequence[str],
    columns: Mapping[str, str] | None,
    key: str | Sequence[str] | None,
    keep: str | Sequence[str],
    output: str,
    mode: str,
    retry_failed: bool,
    logprobs: bool,
) -> JobSpec:
    """The job's spec with every column name as the source spells it.

    Args:
        schema: the source's.
        names: the UDF's arguments in their order.
        columns: argument to source column; None: columns of the arguments' own names.

    Raises:
        MissingColumn: a column that the source does not have, or an argument without a column.
        ReservedColumn: a kept or output column with a name that the result table, or the job itself, uses.
        WrongColumnType: a key or kept column of a type that a Delta table cannot hold.
        InvalidConfig: an unknown mode or argument, or a name that Delta cannot hold.
    """
    if mode not in MODES:
        raise InvalidConfig(f"run(): mode must be one of {', '.join(MODES)}, not {mode!r}.")
    given = dict(columns) if columns is not None else {name: name for name in names}
    params = given.pop(PARAMS, None)
    _check_arguments(names, given)
    arguments = tuple((name, _existing(schema, given[name], f"argument {name!r}")) for name in names)
    keys = tuple(_existing(schema, name, "key") for name in _listed(key))
    kept = tuple(dict.fromkeys([*keys, *(_existing(schema, name, "keep") for name in _listed(keep))]))
    _check_names(kept, output)
    _check_internal(schema.names if not keys else kept)
    for name in kept:
        _check_type(name, schema[name].dataType.simpleString())
    return JobSpec(
        arguments=arguments,
        params=None if params is None else _existing(schema, params, PARAMS),
        key=keys,
        kept=kept,
        output=output,
        mode=mode,
        retry_failed=retry_failed,
        logprobs=logprobs,
    )


def check_table(facts: TableFacts, expected: Sequence[TableColumn], *, table: str) -> None:
    """An existing table must have the job's columns.

    Raises:
        TableSchemaMismatch: it has not; the message says which differ.
    """
    have = {c.name.lower(): _plain(c.ddl) for c in facts.columns}
    want = {c.name.lower(): _plain(c.ddl) for c in expected}
    if have == want:
        return
    differences = [
        *(f"{name} ({want[name]}) is missing" for name in want if name not in have),
        *(f"{name} ({have[name]}) is not of this job" for name in have if name not in want),
        *(f"{name} is {have[name]}, not {want[name]}" for name in want if name in have and have[name] != want[name]),
    ]
    raise TableSchemaMismatch(
        f"{table} exists with other columns: {'; '.join(differences)}. Write into another table, or give the key, keep and "
        "output that it was made with."
    )


def _check_arguments(names: Sequence[str], given: Mapping[str, str]) -> None:
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise InvalidConfig(
            f"run(): columns names {unknown}, which the prompt does not have; its arguments are {list(names)}."
        )
    missing = [name for name in names if name not in given]
    if missing:
        raise MissingColumn(f"run(): columns gives no column for {missing}; the prompt's arguments are {list(names)}.")
    for name, column in given.items():
        if not isinstance(column, str):
            raise InvalidConfig(
                f"run(): columns[{name!r}] must be the name of a source column, not {type(column).__name__}."
            )


def _check_names(kept: Sequence[str], output: str) -> None:
    reserved = reserved_columns()
    for name in (*kept, output):
        if name.lower() in reserved:
            raise ReservedColumn(
                f"run(): the result table has a column {name} of its own; rename it in the source (or output)."
            )
        if _BAD_NAME.search(name) or not name:
            raise InvalidConfig(
                f"run(): Delta cannot hold a column named {name!r}; rename it without blanks and ,;{{}}()=."
            )
    if output.lower() in {name.lower() for name in kept}:
        raise ReservedColumn(f"run(): output {output!r} is the name of a kept column too; choose another one.")


def _check_internal(names: Sequence[str]) -> None:
    for name in names:
        if INTERNAL.fullmatch(name):
            raise ReservedColumn(
                f"run(): the job uses the name {name} for a column of its own; rename it in the source."
            )


def _check_type(name: str, ddl: str) -> None:
    if _NO_DELTA_TYPE.search(ddl):
        raise WrongColumnType(
            f"run(): a Delta table cannot hold column {name} of type {ddl}; leave it out of key and keep, or cast it in the "
            "source, for example to string."
        )


def _existing(schema: StructType, name: str, role: str) -> str:
    """The column as the source spells it."""
    if name in schema.names:
        return name
    by_lower = {field.lower(): field for field in schema.names}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    close = difflib.get_close_matches(name, schema.names, n=3, cutoff=0.75)
    guess = f" Did you mean {' or '.join(close)}?" if close else ""
    raise MissingColumn(
        f"run(): the source has no column {name!r} ({role}); it has {', '.join(schema.names[:20])}.{guess} "
        f"columns={{argument: column}} says where each argument comes from."
    )


def _listed(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def _plain(ddl: str) -> str:
    return re.sub(r"\s+", "", ddl.lower())
