from __future__ import annotations

from tests.support.executor_fixtures import log, place

__all__ = ["log", "place"]
