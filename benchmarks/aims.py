"""What was aimed at, beside what a run found: ratios of one run, so that they mean the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.workloads import WORKLOADS


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """One ratio of warm speeds, or of seconds over the floor.

    Attributes:
        workload: where it is measured.
        peer: whose speed it is.
        over: the peer that it is compared with, or ``floor``.
        bound: the ratio of speeds must be at least this; for the floor, the ratio of seconds at most this.
    """

    workload: str
    peer: str
    over: str
    bound: float

    @property
    def is_floor(self) -> bool:
        """Whether seconds over the floor are meant."""
        return self.over == "floor"


_RIVALS = ("row_by_row", "predict_batch_udf", "generate_batch", "distribatch")
AIMS = (
    Aim(workload="extract", peer="ours", over="floor", bound=1.3),
    Aim(workload="classify", peer="ours", over="floor", bound=1.15),
    *(Aim(workload=w.name, peer="ours", over="vllm", bound=1.1) for w in WORKLOADS.values() if w.asks("vllm")),
    *(
        Aim(workload="extract", peer="ours", over=o, bound=n)
        for o, n in zip(_RIVALS, (8.0, 5.0, 4.0, 5.0), strict=True)
    ),
    *(Aim(workload="classify", peer="ours", over=over, bound=2.0) for over in _RIVALS),
    *(
        Aim(workload=name, peer=peer, over="ours", bound=1 / 1.05)
        for name in ("classify", "extract", "longer")
        for peer in ("spark1", "spark2")
        if WORKLOADS[name].asks(peer)
    ),
    Aim(workload="duplicates", peer="reuse", over="spark2", bound=1.9),
)


def table(figures: dict[str, dict[str, dict[str, Any]]], titles: dict[str, str]) -> str:
    """Markdown of the aims that the run has measured; empty where there is none.

    Args:
        figures: by workload and peer, what :func:`benchmarks.report.summary` gives.
        titles: of the peers.
    """
    rows = [row for aim in AIMS if (row := _row(aim, figures.get(aim.workload, {}), titles)) is not None]
    return "\n".join(["| aim | wanted | found | |", "| --- | --- | --- | --- |", *rows]) + "\n" if rows else ""


def _row(aim: Aim, figures: dict[str, dict[str, Any]], titles: dict[str, str]) -> str | None:
    if not {aim.peer, aim.over} - {"floor"} <= figures.keys():
        return None
    mine = figures[aim.peer]
    found = mine.get("over_floor") if aim.is_floor else _ratio(mine, figures[aim.over])
    name = f"{aim.workload}: {titles[aim.peer]} over {'the floor' if aim.is_floor else titles[aim.over]}"
    wanted = f"at {'most' if aim.is_floor else 'least'} {aim.bound:.2f}x"
    if found is None:
        return f"| {name} | {wanted} | a peer failed | not measured |"
    reached = found <= aim.bound if aim.is_floor else found >= aim.bound
    return f"| {name} | {wanted} | {found:.2f}x | {'reached' if reached else 'missed'} |"


def _ratio(mine: dict[str, Any], other: dict[str, Any]) -> float | None:
    return mine["warm"] / other["warm"] if "warm" in mine and "warm" in other else None
