"""The process of one rank that does not lead: ``python -m sparkinfer.engine.follower``, started by ``ranks.py`` only."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.batch_frames import read_batch
from sparkinfer.engine.ranks import Rank, join


def main() -> None:
    """Build this rank's runner, then run what the leader runs until its end."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    told = json.loads(sys.stdin.buffer.readline())
    runner = join(Rank(**told["rank"]), EngineSpec.from_json(told["spec"]), Path(told["folder"]))
    while (batch := read_batch(sys.stdin.buffer)) is not None:
        runner.logits(batch)
    runner.close()


if __name__ == "__main__":
    main()
