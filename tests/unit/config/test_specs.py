"""Which engine a task gets: one that runs what its config hash says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.engines import fake_spec


@pytest.mark.parametrize(
    ("settings", "is_same"),
    [
        ({"strict": True}, False),
        ({"max_model_len": 128}, False),
        ({"max_batch_size": 3, "kv_memory": 1 << 20, "batch_timeout_ms": 7, "memo": False}, True),
    ],
)
def test_only_settings_that_can_change_an_answer_make_another_engine(settings: dict[str, Any], is_same: bool) -> None:
    spec = fake_spec()
    other = replace(spec, settings=replace(spec.settings, **settings))
    assert (other.identity == spec.identity) == is_same
