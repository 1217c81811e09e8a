"""Job files."""

from __future__ import annotations

import inspect

import pytest

from sparkinfer.config.job import UdfConfig, load_job
from sparkinfer.errors import InvalidConfig

WHOLE = """
source: examples/data/reviews.parquet
into: out/labels
columns: {text: text}
key: [id]
keep: [id, label]
output: predicted
udf:
  model: sample
  prompt: "A customer wrote:\\n{text}\\nGreat?"
  choices: [great, other]
  stop: "###"
spark: {spark.master: "local[2]", spark.ui.enabled: false, spark.sql.shuffle.partitions: 2}
experiment: reviews
tracking: {sample_rows: 0}
"""


def write(tmp_path, text: str):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return path


def test_a_whole_job_is_read(tmp_path) -> None:
    job = load_job(write(tmp_path, WHOLE))
    assert (job.source, job.into, job.columns, job.key, job.keep) == (
        "examples/data/reviews.parquet", "out/labels", {"text": "text"}, ("id",), ("id", "label"),
    )  # fmt: skip
    assert (job.udf.choices, job.udf.stop, job.udf.max_tokens) == (("great", "other"), ("###",), 256)
    assert job.spark == {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    assert (job.tracking.sample_rows, job.mode, job.fail_on_error) == (0, "latest", None)


@pytest.mark.parametrize(("said", "read"), [("2h", "2h"), ("5400", 5400), ("12.5", 12.5), ("null", None)])
def test_a_deadline_is_a_text_or_a_number(tmp_path, said: str, read: object) -> None:
    assert load_job(write(tmp_path, f"source: a\ninto: b\ndeadline: {said}\n")).deadline == read


def test_the_udf_section_has_the_arguments_and_defaults_of_llm_udf() -> None:
    from sparkinfer.udf.functions import llm_udf

    parameters = inspect.signature(llm_udf).parameters.values()
    expected = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert UdfConfig().keywords() == expected


SHORT = "source: a\ninto: b\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SHORT + "uf: 1\n", r"line 3: unknown key uf; did you mean udf"),
        (SHORT + "udf:\n  max_tokns: 5\n", r"line 4: unknown key udf\.max_tokns; did you mean max_tokens"),
        (SHORT + "udf:\n  max_tokens: '5'\n", r"line 4: udf\.max_tokens must be a valid integer, not '5'"),
        (SHORT + "udf:\n  max_tokens: 0\n", r"line 4: max_tokens must be at least 1"),
        (
            SHORT + "udf:\n  choices: [yes, no]\n",
            r"line 4: udf\.choices\.0 must be a valid string, not True \(put it in quotes\)",
        ),
        (SHORT + "udf: sample\n", r"line 3: udf must be"),
        (SHORT + "mode: newest\n", r"line 3: mode must be 'latest' or 'append'"),
        (SHORT + "deadline: soon\n", r"line 3: deadline must be a length of time such as 2h"),
        (SHORT + "deadline: 0\n", r"line 3: deadline must lie ahead"),
        (SHORT + "key: [1]\n", r"line 3: key\.0 .*put it in quotes"),
        (SHORT + "spark: {spark: {master: x}}\n", r"line 3: .*one value"),
        (SHORT + "into: c\n", r"line 3: the key into stands here a second time"),
        ("source: a\n", r"the key into is missing"),
        ("source: [a\n", r"line \d: this is no YAML"),
    ],
)
def test_every_mistake_names_its_key_and_line(tmp_path, text: str, told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        load_job(write(tmp_path, text))
