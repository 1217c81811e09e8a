"""One peer in one fresh process: load, first run, warm run; or its batch sizes tried out. Called by ``benchmarks.cell``.

    python -m benchmarks.measure PEER JOB.json RESULT.json

Imports only the standard library, so that it runs in every peer's environment.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers import PEERS, Ask, Outcome, PeerProtocol, Setting


def measure(peer: PeerProtocol, job: dict[str, Any]) -> dict[str, Any]:
    """The figures of one cell."""
    sets = {name: [Ask(**ask) for ask in asks] for name, asks in job["asks"].items()}
    options = job["setting"]["options"]
    if job["tuning"]:
        return {
            "tuned": [
                {"options": o, "seconds": timed(peer, sets["tuning"], options | o)["seconds"]} for o in job["tuning"]
            ]
        }
    runs = {"first": timed(peer, sets["first"], options), "warm": timed(peer, sets["warm"], options)}
    return {"runs": runs, "where": peer.where(sets["tuning"]) if job["profile"] else {}}


def timed(peer: PeerProtocol, asks: list[Ask], options: dict[str, Any]) -> dict[str, Any]:
    """One run with its wall seconds."""
    began = time.perf_counter()
    outcome: Outcome = peer.run(asks, options)
    seconds = time.perf_counter() - began
    assert len(outcome.answers) == len(asks), f"{len(outcome.answers)} answers for {len(asks)} rows"
    return {"seconds": seconds, **asdict(outcome)}


def main() -> None:
    """Read the job, measure, write the result."""
    name, job_path, result_path = sys.argv[1:]
    job = json.loads(Path(job_path).read_text())
    began = time.perf_counter()
    module = importlib.import_module(f"benchmarks.peers.{PEERS[name].module or name}")
    peer: PeerProtocol = module.Peer(Setting(**job["setting"]))
    try:
        peer.load()
        load_s = time.perf_counter() - began
        result = {"load_s": load_s, **measure(peer, job)}
    finally:
        peer.close()
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
