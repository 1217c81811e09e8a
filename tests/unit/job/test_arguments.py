"""Slips in the call of ``run()`` are named before anything happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkinfer.errors import InvalidConfig
from sparkinfer.job.arguments import check_arguments
from sparkinfer.sink.memory import MemorySink
from sparkinfer.tracking.base import NullTracker


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("source", None),
        ("source", 5),
        ("source", Path("in/texts")),
        ("into", None),
        ("into", " "),
        ("into", Path("out")),
        ("columns", ["text"]),
        ("columns", {"text": 5}),
        ("key", 5),
        ("keep", [5]),
        ("keep", None),
        ("output", None),
        ("output", ""),
        ("buckets", 0),
        ("buckets", -3),
        ("buckets", 1.5),
        ("buckets", "3"),
        ("buckets", True),
        ("on_progress", "bar"),
        ("tracker", "mlflow"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidConfig, match=rf"run\(\): {name} must be "):
        check_arguments(**{name: value})


@pytest.mark.parametrize(
    "given",
    [
        {"source": "main.tickets", "into": "out/labels", "columns": None, "key": None, "keep": (), "output": "label"},
        {"columns": {"text": "body"}, "key": "id", "keep": ["id", "day"], "buckets": 3, "on_progress": print},
        {"into": MemorySink(), "tracker": NullTracker()},
    ],
)
def test_what_is_meant_passes(given: dict[str, Any]) -> None:
    check_arguments(**given)


@pytest.mark.parametrize(("source", "into"), [("main.tickets", "main.tickets"), ("out/labels", "./out/labels/")])
def test_a_table_is_not_labelled_into_itself(source: str, into: str) -> None:
    with pytest.raises(InvalidConfig, match="their own input"):
        check_arguments(source=source, into=into)
