"""Fixtures of tests that act as an executor; the conftest of a folder takes them over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkinfer.host.place import Place, here
from tests.support.engines import executor_folder


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """This process as an executor of its own."""
    with executor_folder() as block_manager:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(block_manager))
        monkeypatch.delenv("SPARK_LOG_DIR", raising=False)
        yield here()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the fake engine writes its loads and requests."""
    return tmp_path / "fake.jsonl"
