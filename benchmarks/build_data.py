"""Makes ``benchmarks/data`` from the texts that the project was given; run once, the result is committed.

    python -m benchmarks.build_data FOLDER            # reviews_en.parquet and documents_en.parquet lie there
    python -m benchmarks.build_data --answers         # asks the oracle about the rows of the default size

The oracle is transformers' ``generate``, one row after the other, in fp32; it goes on where it was broken off.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.workloads import DATA, MAX_MODEL_LEN, WORKLOADS, Row, read_rows
from sparkinfer.model import fetch, load, resolve

SCHEMA = pa.schema(
    [("id", pa.string()), ("text", pa.string()), ("max_tokens", pa.int32()), ("answer", pa.list_(pa.int32()))]
)
ROWS = {"classify": 416, "extract": 416, "summarise": 48, "unequal": 416, "duplicates": 416}
SUMMARY_TOKENS, TEMPLATE_TOKENS = 64, 64


def build(source: Path) -> None:
    """Write all five files without answers."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(fetch(resolve("sample")))
    reviews = pq.read_table(source / "reviews_en.parquet").to_pylist()
    reviews = list({review["text"]: review for review in reviews}.values())  # twins stand in `duplicates` alone
    documents = pq.read_table(source / "documents_en.parquet").to_pylist()
    makers = {
        "classify": classify(reviews[:416]),
        "extract": extract(reviews[416:832]),
        "duplicates": duplicates(extract(reviews[832 : 832 + 208])),
        "summarise": summarise(documents, tokenizer),
        "unequal": unequal(documents, tokenizer),
    }
    for name, rows in makers.items():
        _write(name, [next(rows) for _ in range(ROWS[name])])


def classify(reviews: list[dict[str, str]]) -> Iterator[Row]:
    """Reviews with four tokens out."""
    for review in reviews:
        yield Row(id=review["id"], text=review["text"], max_tokens=4, answer=None)


def extract(reviews: list[dict[str, str]]) -> Iterator[Row]:
    """Reviews with 8 to 128 tokens out, mean about 43."""
    draw = random.Random(43)
    for review in reviews:
        yield Row(
            id=review["id"], text=review["text"], max_tokens=min(128, 8 + int(draw.expovariate(1 / 38))), answer=None
        )


def duplicates(rows: Iterator[Row]) -> Iterator[Row]:
    """Every row twice, shuffled within sixteen, so that half of any sixteen rows repeat the other half."""
    draw = random.Random(2)
    distinct = list(rows)
    for start in range(0, len(distinct), 8):
        group = distinct[start : start + 8] * 2
        draw.shuffle(group)
        yield from group


def summarise(documents: list[dict[str, str]], tokenizer: Any) -> Iterator[Row]:
    """Documents cut to the context."""
    room = MAX_MODEL_LEN - SUMMARY_TOKENS - TEMPLATE_TOKENS
    for document in documents:
        ids = tokenizer(document["text"]).input_ids
        if len(ids) > room:
            yield Row(id=document["id"], text=tokenizer.decode(ids[:room]), max_tokens=SUMMARY_TOKENS, answer=None)


def unequal(documents: list[dict[str, str]], tokenizer: Any) -> Iterator[Row]:
    """Pieces of documents of 10 to 1,200 tokens, each length as likely as its double."""
    draw = random.Random(5)
    encoded = [(document["id"], tokenizer(document["text"]).input_ids) for document in documents]
    taken = set()
    while True:
        name, ids = draw.choice(encoded)
        length = int(10 * 120 ** draw.random())
        start = draw.randrange(max(1, len(ids) - length))
        if (name, start) in taken:  # a document shorter than that begins at 0 only
            continue
        taken.add((name, start))
        text = tokenizer.decode(ids[start : start + length])
        yield Row(id=f"{name}@{start}", text=text, max_tokens=draw.randint(4, 64), answer=None)


def answer() -> None:
    """Ask the oracle about the rows that a run of the default size takes first, and write its tokens beside them."""
    import torch
    from transformers import AutoTokenizer

    folder = fetch(resolve("sample"))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), load(folder, dtype="fp32", attention="sdpa")
    model.generation_config.eos_token_id = None  # min_new_tokens would ban the end token instead of passing over it
    for name, workload in WORKLOADS.items():
        if workload.rows_of:  # answered there
            continue
        rows = pq.read_table(workload.file).to_pylist()
        wanted = len(read_rows(workload, num_rows=workload.rows).first)
        for index in range(wanted):
            row = rows[index]
            if row["answer"] is not None:
                continue
            chat = [{"role": "user", "content": workload.prompt.replace("{text}", row["text"])}]
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
            with torch.inference_mode():
                made = model.generate(**ids, do_sample=False, max_new_tokens=row["max_tokens"])
            row["answer"] = made[0, ids["input_ids"].shape[1] :].tolist()
            if index % 8 == 7 or index == wanted - 1:
                _write(name, [Row(**values) for values in rows])
                print(f"{name}: {index + 1} of {wanted} rows answered", flush=True)


def _write(name: str, rows: list[Row]) -> None:
    values = {field: [getattr(row, field) for row in rows] for field in SCHEMA.names}
    DATA.mkdir(exist_ok=True)
    pq.write_table(pa.table(values, schema=SCHEMA), DATA / f"{name}.parquet", compression="zstd")


def main() -> None:
    """Build, or answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--answers", action="store_true")
    arguments = parser.parse_args()
    if arguments.source is not None:
        build(arguments.source)
    if arguments.answers:
        answer()


if __name__ == "__main__":
    main()
