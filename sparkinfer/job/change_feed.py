"""The change data feed of a Delta source: what was inserted, updated and deleted since a version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkinfer.sink.location import is_path

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

PROPERTY = "delta.enableChangeDataFeed"
CHANGE, VERSION, _TIME = "_change_type", "_commit_version", "_commit_timestamp"
#: Changes after which a row is there; after the others it is not.
ARRIVALS = ("insert", "update_postimage")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFeed:
    """A Delta table that records its changes.

    Attributes:
        place: name or path.
        table_id: a table that was dropped and made again has another.
        version: up to which changes are read.
    """

    place: str
    table_id: str
    version: int

    def since(self, spark: SparkSession, version: int) -> DataFrame:
        """The changes of the versions after this one, with what kind each is and which version made it.

        Spark raises where the feed does not cover all of them.
        """
        reader = (
            spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", version + 1)
            .option("endingVersion", self.version)
        )
        return (reader.load(self.place) if is_path(self.place) else reader.table(self.place)).drop(_TIME)


def feed_of_path(table: DeltaTable, *, path: str) -> ChangeFeed | None:
    """The feed of a table by path, or None where it has none."""
    metadata = table.metadata()
    if metadata.configuration.get(PROPERTY) != "true":
        return None
    return ChangeFeed(place=path, table_id=str(metadata.id), version=table.version())


def feed_of_name(spark: SparkSession, name: str, *, version: int) -> ChangeFeed | None:
    """The feed of a table of the catalog, or None where it has none."""
    try:
        said = spark.sql(f"SHOW TBLPROPERTIES {name} ('{PROPERTY}')").collect()[0]["value"]
        if said != "true":
            return None
        table_id = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["id"]
    except Exception:  # no right to ask: the whole table is read
        return None
    return ChangeFeed(place=name, table_id=table_id, version=version)
