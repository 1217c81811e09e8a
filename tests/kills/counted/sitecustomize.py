"""Python runs this at its start where the folder is on the path: the real engine's processes then keep account as the fake does.

Each load and each request that ended is a line of the file that ``KILLS_LOG`` names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def _tell(event: str, **more: object) -> None:
    with open(os.environ["KILLS_LOG"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "pid": os.getpid(), "time": time.time(), **more}) + "\n")


class _Counted:
    """An engine that says what it finished; everything else is the engine's own."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._prompts: dict[int, int] = {}
        _tell("load")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def add(self, request: Any) -> None:
        self._prompts[request.request_id] = hash(tuple(request.prompt_ids))
        self._engine.add(request)

    def step(self) -> list[Any]:
        outputs: list[Any] = self._engine.step()
        for output in outputs:
            if output.finish_reason is not None:
                _tell("request", prompt=self._prompts.pop(output.request_id, 0))
        return outputs


if "KILLS_LOG" in os.environ and "sparkinfer.host.main" in sys.orig_argv:
    from sparkinfer.engine import create

    _create = create.create_engine
    create.create_engine = lambda spec, folder: _Counted(_create(spec, folder))  # type: ignore[assignment,return-value]
