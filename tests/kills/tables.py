"""Sources and result tables of the matrix: what goes in, and what came out in a form that can be compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Size:
    """Rows and distinct texts of the first source, and what the second one has more (half of it texts of the first)."""

    rows: int
    distinct: int
    more_rows: int
    more_texts: int

    def first(self) -> list[str]:
        """Texts of the first source, row by row."""
        return [f"text {i % self.distinct}" for i in range(self.rows)]

    def second(self) -> list[str]:
        """Texts of the second source: the first's, new ones, and old ones again."""
        new = [f"text {self.distinct + i % self.more_texts}" if i % 2 else f"text {i}" for i in range(self.more_rows)]
        return self.first() + new

    @property
    def new_texts(self) -> int:
        """Distinct texts that only the second source has."""
        return len({*self.second()} - {*self.first()})


@dataclass(frozen=True)
class Sources:
    """Paths of the sources; ``before`` has the first one's keys with other texts."""

    before: str
    first: str
    second: str

    @classmethod
    def write(cls, folder: Path, size: Size) -> Sources:
        """Write them as Parquet."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        before = [f"old {text}" for text in size.first()]
        for name, texts in (("before", before), ("first", size.first()), ("second", size.second())):
            path = folder / f"{name}.parquet"
            pq.write_table(pa.table({"id": list(range(len(texts))), "text": texts}), path)
            paths.append(str(path))
        return cls(*paths)


def content(table: str) -> Counter[tuple[Any, ...]]:
    """Rows of a result table as a multiset: what must be equal to an undisturbed run's."""
    from deltalake import DeltaTable

    columns = ["id", "answer", "input_hash", "row_key", "finish_reason", "error_code", "bucket"]
    rows = DeltaTable(table).to_pyarrow_table(columns=columns)
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def config_hashes(table: str) -> set[str]:
    """Configurations under which the rows of a table were answered."""
    from deltalake import DeltaTable

    return set(DeltaTable(table).to_pyarrow_table(columns=["config_hash"])["config_hash"].to_pylist())
