"""Which sink a table gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkinfer.errors import MissingDependency
from sparkinfer.sink.location import is_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkinfer.sink.base import Sink


def open_sink(spark: SparkSession, into: str) -> Sink:
    """Spark's own Delta where the session has it, delta-rs for a path where it does not.

    Raises:
        MissingDependency: a table name in a session without Delta.
    """
    from sparkinfer.sink.delta_rs import DeltaRsSink
    from sparkinfer.sink.delta_spark import DeltaSparkSink, has_delta

    if has_delta(spark):
        return DeltaSparkSink(spark, into)
    if not is_path(into):
        raise MissingDependency(
            f"This Spark session has no Delta, so the table {into} cannot be written by name. Start the session with "
            'sparkinfer.session() or with the delta-spark jars, or give a path such as "out/labels".'
        )
    return DeltaRsSink(spark, into)
