"""What the kills cost, as a table: ``python -m tests.kills.table [--publish docs/faults.md]``."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- kills: begin -->", "<!-- kills: end -->"


def sentence(found: dict[str, Any]) -> str:
    """One kill in a line."""
    head = f"kill {found['number']} (seed {found['seed']}) {found['setting']}, {found['kind']}:"
    if found.get("missed"):
        return f"{head} missed, the job was over; {found['seconds']:.1f} s"
    if "lost" not in found:
        return f"{head} WRONG, {found.get('error')}; {found['seconds']:.1f} s"
    return (
        f"{head} {found['phase']}, {found['seconds_in']:.1f} s in, {found['asked']} of {found['distinct']} asked, "
        f"{found['in_flight']} in flight, {found['commits']} commits{' and one open' if found['in_commit'] else ''}; "
        f"{found['outcome']}, {found['repaired']} rows to repair; paid again {found['paid_again']} <= {found['bound']} "
        f"({found['late']} of the last 5 s); lost {found['lost']}, duplicates {found['duplicates']}; "
        f"{found['seconds']:.1f} s{'' if found['ok'] else '  WRONG'}"
    )


def read(path: Path) -> list[dict[str, Any]]:
    """Records of all calls; of a kill that was run twice the last one counts."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = {(r["seed"], r["number"], r.get("engine")): r for r in map(json.loads, lines) if not r.get("missed")}
    return list(found.values())


def table(records: Sequence[dict[str, Any]]) -> str:
    """Markdown: a line a kind of kill, and one for all."""
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        kind = record["kind"] + (", while rows are replaced" if record.get("replacing") else "")
        kinds[record["setting"], kind].append(record)
    lines = [
        "| where | killed | kills | before / in / after a commit | rows in flight | rows lost | duplicates | paid again, mean (max) | bound, mean | seconds |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_line(setting, kind, some) for (setting, kind), some in sorted(kinds.items())]
    return "\n".join([*lines, _line("all", "", list(records))])


def _line(setting: str, kind: str, records: Sequence[dict[str, Any]]) -> str:
    whole = [r for r in records if "lost" in r]
    moments = [
        sum(not r["in_commit"] and r["commits"] == 0 for r in whole),
        sum(r["in_commit"] for r in whole),
        sum(not r["in_commit"] and r["commits"] > 0 for r in whole),
    ]
    wrong = sum(not r["ok"] for r in records)
    cells = [
        setting,
        kind,
        f"{len(records)}" + (f" ({wrong} wrong)" if wrong else ""),
        " / ".join(map(str, moments)),
        f"{_mean(whole, 'in_flight'):.1f}",
        str(sum(r["lost"] for r in whole)),
        str(sum(r["duplicates"] for r in whole)),
        f"{_mean(whole, 'paid_again'):.1f} ({max((r['paid_again'] for r in whole), default=0)})",
        f"{_mean(whole, 'bound'):.1f}",
        f"{_mean(records, 'seconds'):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _mean(records: Sequence[dict[str, Any]], name: str) -> float:
    return sum(r[name] for r in records) / len(records) if records else 0.0


def main() -> None:
    """Print the table, and put it into a page where asked to."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills.table", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/kills"))
    parser.add_argument("--publish", type=Path, help="a page with the two markers")
    asked = parser.parse_args()
    text = table(read(asked.out / "kills.jsonl"))
    print(text)
    if asked.publish is not None:
        page = asked.publish.read_text()
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        asked.publish.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
