"""A fake model whose engine logs each load and each request that it really executes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.counting import CountingModel


@pytest.fixture
def model(tmp_path: Path) -> CountingModel:
    return CountingModel(tmp_path / "engine.log")
