"""What a job reads: a table by name, files by path, or a DataFrame; a Delta source is pinned to one version."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from sparkinfer.errors import PermissionDenied, SourceNotFound, SparkInferError
from sparkinfer.job.change_feed import ChangeFeed, feed_of_name, feed_of_path
from sparkinfer.job.files import file_system
from sparkinfer.sink.delta_rs import read_delta
from sparkinfer.sink.delta_spark import has_delta
from sparkinfer.sink.faults import first_line, job_error
from sparkinfer.sink.location import absolute, is_path
from sparkinfer.tracking.base import DatasetFacts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

#: File ending -> Spark's format and the options that people mean.
_FORMATS: dict[str, tuple[str, dict[str, str]]] = {
    ".parquet": ("parquet", {}),
    ".orc": ("orc", {}),
    ".json": ("json", {}),
    ".jsonl": ("json", {}),
    ".ndjson": ("json", {}),
    ".csv": ("csv", {"header": "true", "multiLine": "true", "escape": '"'}),
    ".txt": ("text", {}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A job's input: lazy rows, what is known about them, and where its changes can be read."""

    frame: DataFrame
    facts: DatasetFacts
    feed: ChangeFeed | None = None


def open_source(spark: SparkSession, source: str | DataFrame) -> Source:
    """The rows to work on.

    Args:
        spark: the session.
        source: table name, path (has a ``/`` or a scheme), or DataFrame.

    Raises:
        SourceNotFound: it does not exist or cannot be read.
        PermissionDenied: no right to read it.
    """
    if not isinstance(source, str):
        return _described(source, name="DataFrame", place="DataFrame", form="dataframe", version=None)
    try:
        if is_path(source):
            return _open_path(spark, absolute(source))
        return _open_table(spark, source)
    except SparkInferError:
        raise
    except Exception as error:
        found = job_error(error, table=source, doing="Reading the source")
        if isinstance(found, PermissionDenied):
            raise found from error
        raise SourceNotFound(f"The source {source} cannot be read: {first_line(error)}{_file_hint(source)}") from error


def _file_hint(source: str) -> str:
    """For a table's name that is a file's as well."""
    return f" It was taken for a table's name; for the file write './{source}'." if Path(source).exists() else ""


def _open_table(spark: SparkSession, name: str) -> Source:
    """A table or view of the catalog; a Delta table is read at its newest version."""
    frame = spark.table(name)
    version = _newest_version(spark, name)
    if version is None:
        return _described(frame, name=name, place=name, form="table", version=None)
    pinned = spark.read.option("versionAsOf", version).table(name)
    source = _described(pinned, name=name, place=name, form="delta", version=version)
    return replace(source, feed=feed_of_name(spark, name, version=version))


def _newest_version(spark: SparkSession, name: str) -> int | None:
    """The version of a Delta table, None for every other table and for views."""
    try:
        return int(spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").collect()[0]["version"])
    except Exception:  # not Delta, a view, or no right to its history: read as it is
        return None


def _open_path(spark: SparkSession, path: str) -> Source:
    name = PurePosixPath(path).name
    if not _exists(path):
        raise SourceNotFound(f"The source {path} does not exist. Give the path of a file or folder, or a table's name.")
    if _exists(f"{path}/_delta_log"):
        from deltalake import DeltaTable

        table = DeltaTable(path)
        version = int(table.version())
        if not has_delta(spark):
            return _described(read_delta(spark, path, version), name=name, place=path, form="delta", version=version)
        frame = spark.read.format("delta").option("versionAsOf", version).load(path)
        source = _described(frame, name=name, place=path, form="delta", version=version)
        return replace(source, feed=feed_of_path(table, path=path))
    form, options = _FORMATS.get(PurePosixPath(path).suffix.lower(), ("parquet", {}))
    reader: DataFrameReader = spark.read.options(**options)
    return _described(reader.format(form).load(path), name=name, place=path, form=form, version=None)


def _exists(path: str) -> bool:
    from pyarrow.fs import FileType

    fs, inside = file_system(path)
    return bool(fs.get_file_info(inside).type != FileType.NotFound)


def _described(frame: DataFrame, *, name: str, place: str, form: str, version: int | None) -> Source:
    columns = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    return Source(
        frame=frame, facts=DatasetFacts(name=name, source=place, format=form, version=version, columns=columns)
    )
