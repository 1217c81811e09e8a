"""One job in a process of its own: ``python driver.py '{"source": ..., "into": ..., "model": ...}'``."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from sparkinfer import llm_udf, run, session
from sparkinfer.tracking.base import NullTracker
from tests.support.drivers import THRIFTY


def main(arguments: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spark = session(master="local[2,4]", config=THRIFTY | {"spark.sql.warehouse.dir": folder})
        result = run(
            spark,
            source=arguments["source"],
            into=arguments["into"],
            udf=llm_udf(model=arguments["model"], prompt="Say {text}"),
            key="id",
            output="answer",
            buckets=8,
            tracker=NullTracker(),
        )
        print(json.dumps(result.to_dict()))
        spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
