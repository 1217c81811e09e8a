"""All peers on the same rows in one run; see docs/performance.md for what it prints.

    make bench                                       # everything
    make bench ONLY=extract,ours,row_by_row          # workloads and peers by name
    python -m benchmarks --quick                     # a few rows, one repeat, nothing tuned: does it work?

A run that is broken off goes on where it was: each finished cell lies in out/bench, under the code that it depends on; a full run without
failures removes them, unless --keep says that a later run shall measure again only what has changed. Peers in environments of their
own (``make bench-envs``) are left out where they are not installed. A full run writes benchmarks/results/latest.json, docs/performance.svg and the table in docs/performance.md; a partial or quick one only prints, unless --publish says otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks import report
from benchmarks.agreement import compare
from benchmarks.cell import ROOT, run_cell
from benchmarks.environments import INSTALLERS, is_installed
from benchmarks.floor import floor
from benchmarks.machine import facts
from benchmarks.peers import PEERS, Ask, PeerInfo, Setting
from benchmarks.scripts import SCRIPTS, run_script
from benchmarks.workloads import MAX_MODEL_LEN, TUNED_ON, WORKLOADS, RowSets, Workload, read_rows

CELLS = ROOT / "out" / "bench"
QUICK_ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is run."""

    workloads: list[Workload]
    peers: list[PeerInfo]
    scripts: list[str]
    threads: int
    quick: bool
    repeats: int | None
    limit_s: float


def main() -> None:
    """Run, print, and publish where asked."""
    arguments = _parser().parse_args()
    plan = planned(arguments)
    results = run(plan)
    print("\n" + report.markdown(results))
    is_partial = any((arguments.only, arguments.quick, arguments.rows, arguments.repeats, arguments.threads))
    if arguments.publish if arguments.publish is not None else not is_partial:
        report.publish(results)
    if not (arguments.keep or is_partial or _failed(results)):
        shutil.rmtree(CELLS, ignore_errors=True)


def planned(arguments: argparse.Namespace) -> Plan:
    """The plan that the arguments ask for.

    Raises:
        SystemExit: a name in ``--only`` that nothing has.
    """
    only = {name for name in (arguments.only or "").split(",") if name}
    unknown = only - {*WORKLOADS, *PEERS, *SCRIPTS}
    if unknown:
        raise SystemExit(
            f"There is no {', '.join(sorted(unknown))}; known are {', '.join([*WORKLOADS, *PEERS, *SCRIPTS])}."
        )
    workloads = [w for w in WORKLOADS.values() if w.name in only or not only & {*WORKLOADS}]
    peers = [p for p in PEERS.values() if p.name in only or not only & {*PEERS}]
    scripts = [s for s in SCRIPTS if s in only or not only]
    if only and only <= {*SCRIPTS}:
        workloads = []
    rows = arguments.rows or (QUICK_ROWS if arguments.quick else None)
    if rows:
        workloads = [replace(w, rows=rows) for w in workloads]
    missing = [p.name for p in peers if p.name in INSTALLERS and not is_installed(p.name)]
    if missing:
        print(f"left out, not installed (make bench-envs): {', '.join(missing)}")
    return Plan(
        workloads=workloads,
        peers=[p for p in peers if p.name not in missing],
        scripts=[] if arguments.quick else scripts,
        threads=arguments.threads or len(os.sched_getaffinity(0)),
        quick=arguments.quick,
        repeats=1 if arguments.quick else arguments.repeats,
        limit_s=arguments.limit,
    )


def run(plan: Plan) -> dict[str, Any]:
    """Every cell of the plan; what is there already is not measured again."""
    from transformers import AutoTokenizer

    from sparkinfer.model import fetch, resolve

    folder = fetch(resolve("sample"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    times = 1 if plan.quick else 3
    job = {"folder": str(folder), "threads": plan.threads, "times": times}
    results: dict[str, Any] = {
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": facts(plan.threads),
        "model": folder.name,
        "commit": _commit(),
        "workloads": {},
    }
    if plan.workloads:
        path = CELLS / f"peaks-{_digest(job, 'machine')}.json"
        results["peaks"] = run_cell(
            path, ["benchmarks.machine"], job, environment="", threads=plan.threads, limit_s=plan.limit_s
        )
        _say("machine", "peaks", results["peaks"])
    options = {
        peer.name: tuned(peer, plan, str(folder), tokenizer)
        for peer in plan.peers
        if any(workload.asks(peer.name) for workload in plan.workloads)
    }
    for workload in plan.workloads:
        setting = _setting(workload, plan, str(folder))
        results["workloads"][workload.name] = run_workload(
            workload, plan, setting, options, tokenizer, results["peaks"]
        )
    results["scripts"] = {name: run_script(name) for name in plan.scripts}
    return results


def run_workload(
    workload: Workload,
    plan: Plan,
    setting: Setting,
    options: dict[str, dict[str, Any]],
    tokenizer: Any,
    peaks: dict[str, Any],
) -> dict[str, Any]:
    """All peers on one workload, their repeats in turn, so that a slow minute meets all of them."""
    sets = read_rows(workload, num_rows=workload.rows)
    asks = asked(workload, sets, tokenizer)
    peers = [peer for peer in plan.peers if workload.asks(peer.name)]
    found: dict[str, Any] = {
        "title": workload.title,
        "rows": workload.rows,
        "prompt_tokens": {name: sum(len(ask.prompt_ids) for ask in part) for name, part in asks.items()},
        "tokens": {name: sum(ask.max_tokens for ask in part) for name, part in asks.items()},
        "peers": {},
    }
    if "error" not in peaks:
        prompts, lengths = [ask.prompt_ids for ask in asks["warm"]], [ask.max_tokens for ask in asks["warm"]]
        found["floor"] = floor(prompts, lengths, peaks, reuse=False)
        found["floor_with_reuse"] = floor(prompts, lengths, peaks, reuse=True)
    times = {peer.name: plan.repeats or min(peer.repeats, workload.repeats) for peer in peers}
    for repeat in range(max(times.values(), default=0)):
        for peer in (p for p in peers if repeat < times[p.name]):
            job = _job(replace(setting, options=options[peer.name]), asks, profile=repeat == 0)
            result = _cell(workload, peer, f"cell{repeat}", plan, job)
            if "error" not in result:
                first = result["runs"]["first"]
                result["agreement"] = asdict(
                    compare(first["answers"], sets.first, tokenizer, ends_at_eos=first["ends_at_eos"])
                )
                for one in result["runs"].values():
                    del one["answers"]
            about = {"title": peer.title, "is_ours": peer.is_ours, "options": options[peer.name], "repeats": []}
            found["peers"].setdefault(peer.name, about)["repeats"].append(result)
    return found


def tuned(peer: PeerInfo, plan: Plan, folder: str, tokenizer: Any) -> dict[str, Any]:
    """The peer's options: the fixed ones, and the fastest of those to be tuned (in a quick run the middle one)."""
    if not peer.tuning:
        return peer.fixed
    middle = peer.tuning[len(peer.tuning) // 2]
    if plan.quick:
        return peer.fixed | middle
    workload = WORKLOADS[TUNED_ON]
    asks = asked(workload, read_rows(workload, num_rows=workload.rows), tokenizer)
    job = _job(replace(_setting(workload, plan, folder), options=peer.fixed), asks, tuning=peer.tuning)
    result = _cell(workload, peer, "tuning", plan, job)
    tried = result.get("tuned", [{"options": middle, "seconds": 0.0}])
    return peer.fixed | min(tried, key=lambda one: one["seconds"])["options"]


def asked(workload: Workload, sets: RowSets, tokenizer: Any) -> dict[str, list[Ask]]:
    """The rows as all peers get them."""

    def ask(text: str, max_tokens: int) -> Ask:
        chat = [{"role": "user", "content": workload.prompt.replace("{text}", text)}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        return Ask(text=text, max_tokens=max_tokens, prompt_ids=ids)

    return {
        name: [ask(row.text, row.max_tokens) for row in getattr(sets, name)] for name in ("first", "warm", "tuning")
    }


def _cell(workload: Workload, peer: PeerInfo, name: str, plan: Plan, job: dict[str, Any]) -> dict[str, Any]:
    modules = ("measure", "peers/__init__", "peers/on_spark", f"peers/{peer.module or peer.name}")
    path = CELLS / workload.name / f"{peer.name}-{name}-{_digest(job, *modules, is_ours=peer.is_ours)}.json"
    program = ["benchmarks.measure", peer.name]
    result = run_cell(path, program, job, environment=peer.environment, threads=plan.threads, limit_s=plan.limit_s)
    _say(workload.name, f"{peer.name} {name}", result)
    return result


def _setting(workload: Workload, plan: Plan, folder: str) -> Setting:
    return Setting(
        folder=folder, prompt=workload.prompt, threads=plan.threads, max_model_len=MAX_MODEL_LEN, scratch="", options={}
    )


def _job(
    setting: Setting,
    asks: dict[str, list[Ask]],
    *,
    tuning: tuple[dict[str, Any], ...] = (),
    profile: bool = False,
) -> dict[str, Any]:
    return {
        "setting": asdict(setting),
        "asks": {name: [asdict(ask) for ask in part] for name, part in asks.items()},
        "tuning": list(tuning),
        "profile": profile,
    }


def _digest(job: dict[str, Any], *modules: str, is_ours: bool = False) -> str:
    """Of what is asked and of the code that answers: these modules of the benchmarks, and sparkinfer's own where it is asked."""
    paths = [ROOT / "benchmarks" / f"{module}.py" for module in ("cell", *modules)]
    paths += sorted((ROOT / "sparkinfer").rglob("*.py")) if is_ours else []
    code = [path.read_bytes() for path in paths]
    return hashlib.sha256(json.dumps(job, sort_keys=True).encode() + b"".join(code)).hexdigest()[:12]


def _failed(results: dict[str, Any]) -> bool:
    peers = (peer for workload in results["workloads"].values() for peer in workload["peers"].values())
    return any("error" in repeat for peer in peers for repeat in peer["repeats"])


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    return done.stdout.strip()


def _say(workload: str, what: str, result: dict[str, Any]) -> None:
    wall = f"{result['wall_s']:6.0f} s"
    if "error" in result:
        print(f"{workload:10} {what:28} {wall}  failed: {result['error']}", flush=True)
    elif "runs" in result:
        first, warm = (result["runs"][name]["seconds"] for name in ("first", "warm"))
        print(
            f"{workload:10} {what:28} {wall}  load {result['load_s']:.1f}  first {first:.1f}  warm {warm:.1f} s",
            flush=True,
        )
    else:
        print(f"{workload:10} {what:28} {wall}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="workloads, peers and scripts by name, with commas between")
    parser.add_argument("--rows", type=int, help="rows of one run of every workload")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_ROWS} rows, one repeat, nothing tuned, no scripts"
    )
    parser.add_argument(
        "--repeats", type=int, help="fresh processes a peer; by default three for the nearest and one for the rest"
    )
    parser.add_argument("--threads", type=int, help="of every peer; by default all")
    parser.add_argument("--limit", type=float, default=1800, help="seconds after which a cell is ended")
    parser.add_argument("--keep", action="store_true", help="keep the finished cells in out/bench")
    parser.add_argument(
        "--publish", action=argparse.BooleanOptionalAction, help="write results, plot and docs/performance.md"
    )
    return parser


if __name__ == "__main__":
    main()
