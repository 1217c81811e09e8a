"""One kill: a job disturbed, the same job again, a second run that grew, and what the three cost and left."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kills import tables
from tests.kills.application import JOB_S, Application
from tests.kills.cluster import Standalone
from tests.kills.models import Model
from tests.kills.plan import Kill
from tests.kills.victims import Blow, strike
from tests.support.leftovers import leftovers

BUCKETS = 3
#: Seconds of work that may be paid again beside what is in flight.
BOUND_S = 5.0


@dataclass(frozen=True)
class Reference:
    """What an undisturbed run left, after the first and after the second source."""

    first: Counter[tuple[Any, ...]]
    second: Counter[tuple[Any, ...]]


class Missed(Exception):
    """The job was over before the blow fell."""


def undisturbed(application: Application, sources: tables.Sources, model: Model, folder: Path) -> Reference:
    """The tables that every disturbed run is compared with."""
    into = str(folder / "table")
    found = []
    for source, expected in ((sources.first, model.size.distinct), (sources.second, model.size.new_texts)):
        result = run(application, source, into, model)
        assert result["failed"] == 0
        assert result["requests"] == expected
        found.append(tables.content(into))
    return Reference(*found)


def begin(application: Application, source: str, into: str, model: Model) -> None:
    """Order the job that all three runs are."""
    application.order(
        source=source, into=into, model=model.uri, max_tokens=model.max_tokens, seed=model.seed, buckets=BUCKETS
    )


def run(application: Application, source: str, into: str, model: Model) -> dict[str, Any]:
    """Run a job to its end, undisturbed.

    Raises:
        AssertionError: it did not end well.
    """
    begin(application, source, into, model)
    outcome = application.outcome()
    assert outcome["event"] == "done", outcome
    return dict(outcome["result"])


def disturb(kill: Kill, application: Application, cluster: Standalone | None, model: Model) -> Blow:
    """Wait for the moment, and strike.

    Raises:
        Missed: there was nothing left to disturb.
    """

    def over() -> bool:
        return application.has("done", "failed") or not application.lives

    if kill.kind == "job":
        reached, pause = (lambda: len(model.requests()) >= model.size.distinct // 2), kill.share * 0.5
    elif kill.phase == "before":
        first = 1 + int(kill.share * model.size.distinct / 3)
        reached, pause = (lambda: len(model.requests()) >= first), 0.0
    else:
        event = "commit begins" if kill.phase == "during" else "commit ends"
        reached, pause = (lambda: application.count(event) >= kill.commit), kill.share * 0.8
    application.wait(lambda: reached() or over(), seconds=JOB_S)
    time.sleep(pause)
    draw = random.Random(f"{kill.seed}:{kill.number}:who")
    while not over():
        try:
            return strike(kill.kind, application, cluster, model, draw=draw)
        except LookupError:
            time.sleep(0.1)  # workers come with the next task
    raise Missed


def observed(kill: Kill, blow: Blow, application: Application, model: Model, *, begun: float) -> dict[str, Any]:
    """What the log proves about the moment of the blow."""
    requests = [event for event in model.requests() if event["time"] <= blow.time]
    return {
        "number": kill.number,
        "seed": kill.seed,
        "engine": model.kind,
        "setting": kill.setting,
        "kind": kill.kind,
        "phase": kill.phase,
        "seconds_in": round(blow.time - begun, 2),
        "asked": len(requests),
        "distinct": model.size.distinct,
        "in_flight": blow.in_flight,
        "commits": application.count("commit ends", until=blow.time),
        "in_commit": application.count("commit begins", until=blow.time)
        > application.count("commit ends", until=blow.time),
        "late": sum(event["time"] > blow.time - BOUND_S for event in requests),
        "engines": len({event["pid"] for event in requests}),
    }


def verdict(
    found: dict[str, Any],
    application: Application,
    sources: tables.Sources,
    reference: Reference,
    model: Model,
    into: Path,
) -> dict[str, Any]:
    """Run the job again, then the grown one; compare tables and count what was paid twice."""
    again = run(application, sources.first, str(into), model)
    first = tables.content(str(into))
    paid = len(model.requests())
    grown = run(application, sources.second, str(into), model)
    second = tables.content(str(into))
    lost = sum(((reference.first - first) + (reference.second - second)).values())
    surplus = sum(((first - reference.first) + (second - reference.second)).values())
    bound = found["late"] + max(found["in_flight"], model.batch * found["engines"])
    found |= {
        "repaired": again["rows"],
        "lost": lost,
        "duplicates": surplus,
        "paid_again": paid - model.size.distinct,
        "bound": bound,
        "second_asked": len(model.requests()) - paid,
        "configs": len(tables.config_hashes(str(into))),
        "staging_left": len(list((into / "_sparkinfer").glob("*"))),
        "orphans": leftovers(),
    }
    found["ok"] = (
        (lost, surplus, found["configs"], found["staging_left"], found["orphans"]) == (0, 0, 1, 0, [])
        and 0 <= found["paid_again"] <= bound
        and found["second_asked"] == model.size.new_texts
        and grown["failed"] == 0
    )
    return found
