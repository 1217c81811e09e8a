"""A job's tables as MLflow datasets, from facts alone.

``mlflow.data.from_spark`` and ``load_delta`` are not used: logged, they count the DataFrame, and counting a lazy column of
answers would infer it again. A MetaDataset needs no Spark action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkinfer.tracking.base import DatasetFacts
from sparkinfer.tracking.redact import redact_text

if TYPE_CHECKING:
    from mlflow.data.dataset_source import DatasetSource
    from mlflow.entities import DatasetInput
    from mlflow.types import Schema

#: Spark's simple types as MLflow's; everything else (arrays, maps, structs) is told as a string.
_MLFLOW_TYPES = {
    "string": "string",
    "int": "integer",
    "integer": "integer",
    "smallint": "integer",
    "tinyint": "integer",
    "bigint": "long",
    "long": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "binary": "binary",
    "timestamp": "datetime",
    "date": "datetime",
}


def dataset_input(facts: DatasetFacts, *, context: str) -> DatasetInput:
    """The table as an input of a run.

    Args:
        facts: the table.
        context: MLflow's word for its part in the run, ``inference`` or ``output``.
    """
    from mlflow.data.meta_dataset import MetaDataset
    from mlflow.entities import Dataset, DatasetInput, InputTag

    described = MetaDataset(source=_source(facts), name=facts.name, schema=_schema(facts)).to_dict()
    return DatasetInput(dataset=Dataset(**described), tags=[InputTag(key="mlflow.data.context", value=context)])


def _source(facts: DatasetFacts) -> DatasetSource:
    from mlflow.data.code_dataset_source import CodeDatasetSource
    from mlflow.data.delta_dataset_source import DeltaDatasetSource
    from mlflow.data.spark_dataset_source import SparkDatasetSource

    place = redact_text(facts.source)
    is_path = "/" in place
    if facts.format == "delta" and is_path:
        return DeltaDatasetSource(path=place, delta_table_version=facts.version)
    if facts.format == "delta":
        return DeltaDatasetSource(delta_table_name=place, delta_table_version=facts.version)
    if facts.format == "dataframe":
        return CodeDatasetSource(tags={"mlflow.source.name": place})
    return SparkDatasetSource(path=place) if is_path else SparkDatasetSource(table_name=place)


def _schema(facts: DatasetFacts) -> Schema | None:
    from mlflow.types import ColSpec, Schema

    if not facts.columns:
        return None
    return Schema([ColSpec(type=_MLFLOW_TYPES.get(t.lower(), "string"), name=n) for n, t in facts.columns.items()])
