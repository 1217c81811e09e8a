"""What every peer is asked: workloads of real texts, kept in ``benchmarks/data`` as Parquet files.

    classify    a review behind a shared instruction, 4 tokens out
    extract     the same, 8 to 128 tokens out (mean about 43)
    summarise   a document cut to the context, 64 tokens out
    unequal     texts of 10 to 1,200 tokens without a shared prefix, 4 to 64 tokens out
    duplicates  extract with every text twice, close to its twin
    longer      extract again, three times as many rows: what Spark adds where its fixed seconds are shared by more

A row's tokens out are fixed and nothing ends it earlier, so all peers make the same tokens. ``answer`` holds what
transformers' ``generate`` says to the row alone (fp32, greedy), where ``benchmarks.build_data --answers`` has asked it; rows
without one are left out of the comparison.
This module imports nothing but the standard library until rows are read: peers with environments of their own load it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
MAX_MODEL_LEN = 2048
"""Context of every peer in every cell: prompt and answer together, in tokens."""
TUNING_ROWS, TUNED_ON = 16, "extract"
"""Batch sizes are tuned once a peer, on rows of all lengths behind a shared instruction, and hold for all workloads."""

JUDGE = """You read reviews that customers of a large online shop wrote about food they had bought there, and you judge each of them.
Say first whether the customer would buy the product again, then name in one sentence the reason that the review itself gives, and
at last say how sure you are of your judgement. Do not judge the product yourself, do not invent anything that the review does not
say, and do not repeat the review. A review that praises the product and complains about the delivery is good news for the product.
Answer in English, in plain sentences, without headings, lists or quotations, whatever the language of the review may be.
The review:
{text}"""
SUMMARISE = """Summarise the following text in a few plain sentences.

{text}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One kind of work.

    Attributes:
        name: of the workload and its file.
        title: for tables, with the tokens out.
        prompt: template with the one argument ``{text}``.
        rows: rows of one run of the default size; sized so that row by row takes a minute or two on two cores.
        repeats: fresh processes a peer at most; three where an aim stands on the difference.
        peers: who is asked; empty: all but ``reuse``, which is there for equal rows.
        rows_of: the workload whose file holds its rows; empty: its own.
    """

    name: str
    title: str
    prompt: str
    rows: int
    repeats: int = 3
    peers: tuple[str, ...] = ()
    rows_of: str = ""

    @property
    def file(self) -> Path:
        """Where its rows lie."""
        return DATA / f"{self.rows_of or self.name}.parquet"

    def asks(self, peer: str) -> bool:
        """Whether a peer takes part."""
        return peer in self.peers if self.peers else peer != "reuse"


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(name="classify", title="classify: 4 tokens out", prompt=JUDGE, rows=64),
        Workload(name="extract", title="extract: 8 to 128 tokens out", prompt=JUDGE, rows=32),
        Workload(
            name="summarise", title="summarise long documents: 64 tokens out", prompt=SUMMARISE, rows=8, repeats=1
        ),
        Workload(
            name="unequal",
            title="unequal lengths, no shared prefix: 4 to 64 tokens out",
            prompt="{text}",
            rows=32,
            repeats=1,
        ),
        Workload(
            name="duplicates",
            title="extract with half the rows repeated",
            prompt=JUDGE,
            rows=128,  # so many that steps are full with half of them, too
            peers=("spark2", "reuse"),
        ),
        Workload(
            name="longer",
            title="extract, three times as many rows",
            prompt=JUDGE,
            rows=96,
            peers=("ours", "spark2"),
            rows_of="extract",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: its text, how many tokens come out, and the oracle's tokens where they are known."""

    id: str
    text: str
    max_tokens: int
    answer: list[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSets:
    """Disjoint rows of one workload: for the first run, for the warm run (as many), and for tuning batch sizes."""

    first: list[Row]
    warm: list[Row]
    tuning: list[Row]


def read_rows(workload: Workload, *, num_rows: int) -> RowSets:
    """Rows of a workload; the warm run's are other ones, so that nothing but warmth can be carried over.

    Raises:
        SystemExit: the file holds fewer rows than two runs and the tuning need.
    """
    import pyarrow.parquet as pq

    rows = [Row(**values) for values in pq.read_table(workload.file).to_pylist()]
    most = (len(rows) - TUNING_ROWS) // 2
    if num_rows > most:
        raise SystemExit(f"{workload.name} has rows for two runs of at most {most}, not {num_rows}; ask for fewer.")
    return RowSets(first=rows[:num_rows], warm=rows[num_rows : 2 * num_rows], tuning=rows[-TUNING_ROWS:])
