"""From a run's results to its tables, its plot and docs/performance.md. Every number comes from the results' file."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from benchmarks import aims
from benchmarks.cell import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "latest.json"
PAGE = ROOT / "docs" / "performance.md"
PLOT = ROOT / "docs" / "performance.svg"
BEGIN, END = "<!-- made by `make bench`: begin -->", "<!-- made by `make bench`: end -->"
HEADINGS = (
    "peer", "warm tokens/s", "spread", "first tokens/s", "warm / floor", "ours is", "first row s", "load s", "memory MB", "batch", "like the oracle",
)  # fmt: skip


def publish(results: dict[str, Any]) -> None:
    """Write the results' file, the plot and the page."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    text = markdown(results)
    if results["workloads"]:
        draw(results)
        text += f"\n![Tokens out a second by workload and peer]({PLOT.name})\n"
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")
    print(f"written: {RESULTS.relative_to(ROOT)}, {PLOT.relative_to(ROOT)}, {PAGE.relative_to(ROOT)}")


def markdown(results: dict[str, Any]) -> str:
    """Machine, one table a workload, where the time went, and what the scripts printed."""
    parts = [about(results)]
    for found in results["workloads"].values():
        parts.append(f"### {found['title']}\n\n{table(found)}{where(found)}")
    figures = {
        w: {name: summary(p, found) for name, p in found["peers"].items()} for w, found in results["workloads"].items()
    }
    titles = {name: p["title"] for found in results["workloads"].values() for name, p in found["peers"].items()}
    if reached := aims.table(figures, titles):
        parts.append(f"### Aims\n\n{reached}")
    for name, text in results["scripts"].items():
        parts.append(f"### {name}\n\n```\n{text}\n```\n")
    return "\n".join(parts)


def about(results: dict[str, Any]) -> str:
    """The machine and its peaks in a few lines."""
    machine, peaks = results["machine"], results.get("peaks", {})
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    cores = f"{machine['cores']} cores, {machine['threads']} threads for every peer, {machine['memory_gb']} GB"
    sets, run = " ".join(machine["instruction_sets"]), f"run of {results['began']} at {results['commit']}"
    ended = sorted(
        repeat["ended"]
        for found in results["workloads"].values()
        for peer in found["peers"].values()
        for repeat in peer["repeats"]
        if "ended" in repeat
    )
    if ended and ended[0] < results["began"]:
        run += f", with cells kept from before, measured from {ended[0]} to {ended[-1]}"
    lines = [f"{machine['cpu']}, {cores}, {sets}; {versions}; {results['model']} in fp32; {run}."]
    if "fp32_gflops" in peaks:
        some = ", ".join(f"{speed} with {rows}" for rows, speed in peaks["gflops_by_rows"].items())
        int8 = "none in torch here" if peaks["int8_gops"] is None else f"{peaks['int8_gops']:.0f} GOP/s"
        lines.append(
            f"Its own peak on the model's layers, in the same run: fp32 {some} rows (GFLOP/s); int8 with 256 rows {int8}; "
            f"memory read {peaks['read_gbs']:.1f} GB/s."
        )
    return "\n\n".join(lines) + "\n"


def table(found: dict[str, Any]) -> str:
    """Peers of one workload, the fastest first."""
    figures = {name: summary(peer, found) for name, peer in found["peers"].items()}
    ours = max((f["warm"] for n, f in figures.items() if found["peers"][n]["is_ours"] and "warm" in f), default=None)
    reference = figures.get("ours", {}).get("warm", ours)
    rows = []
    for name, figure in sorted(figures.items(), key=lambda item: -item[1].get("warm", 0.0)):
        title = found["peers"][name]["title"]
        if "warm" not in figure:
            rows.append([title, figure["failed"], *[""] * (len(HEADINGS) - 2)])
            continue
        options = ", ".join(
            f"{k} {v}" for k, v in found["peers"][name]["options"].items() if k not in ("slots", "reuse")
        )
        rows.append(
            [
                f"{title}{f' ({options})' if options else ''}",
                f"{figure['warm']:.1f}",
                figure["spread"],
                f"{figure['first']:.1f}",
                _number(figure["over_floor"], 2),
                "" if name == "ours" or reference is None else f"{reference / figure['warm']:.2f}x",
                _number(figure["first_row_s"], 1),
                f"{figure['load_s']:.1f}",
                f"{figure['peak_mb']:.0f}",
                _number(figure["batch"], 1),
                figure["agreement"],
            ]
        )
    caption = _caption(found)
    lines = [HEADINGS, ["---"] * len(HEADINGS), *rows]
    return caption + "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def summary(peer: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Medians of a peer's repeats."""
    good = [repeat for repeat in peer["repeats"] if "runs" in repeat]
    if not good:
        return {"failed": "failed: " + peer["repeats"][-1]["error"].splitlines()[-1]}
    warm = [found["tokens"]["warm"] / repeat["runs"]["warm"]["seconds"] for repeat in good]
    seconds = median(repeat["runs"]["warm"]["seconds"] for repeat in good)
    firsts = [
        repeat["runs"]["first"]["first_row_s"] for repeat in good if repeat["runs"]["first"]["first_row_s"] is not None
    ]
    batches = [
        repeat["runs"]["warm"]["facts"]["batch"] for repeat in good if "batch" in repeat["runs"]["warm"]["facts"]
    ]
    lowest = found.get("floor_with_reuse" if peer["options"].get("reuse") else "floor")
    agreement = good[0]["agreement"]
    rows, same = agreement["rows"], agreement["same_rows"]
    return {
        "warm": median(warm),
        "low": min(warm),
        "high": max(warm),
        "spread": f"{min(warm):.1f} to {max(warm):.1f}" if len(warm) > 1 else "one run",
        "first": median(found["tokens"]["first"] / repeat["runs"]["first"]["seconds"] for repeat in good),
        "over_floor": seconds / lowest["total_s"] if lowest else None,
        "first_row_s": median(firsts) if firsts else None,
        "load_s": median(repeat["load_s"] for repeat in good),
        "peak_mb": median(repeat["peak_mb"] for repeat in good),
        "batch": median(batches) if batches else None,
        "agreement": f"{same} of {rows} rows, {100 * agreement['tokens']:.1f} % of tokens" if rows else "not known",
    }


def where(found: dict[str, Any]) -> str:
    """Where the engine's time went, as shares of a run under the profiler on the tuning rows."""
    repeats = found["peers"].get("ours", {}).get("repeats", [])
    profile = next((repeat["where"] for repeat in repeats if repeat.get("where")), None)
    if not profile:
        return ""
    total = sum(profile.values())
    shares = ", ".join(
        f"{kind} {100 * seconds / total:.0f} %" for kind, seconds in sorted(profile.items(), key=lambda one: -one[1])
    )
    text = f"\nWhere the engine's time went (profiled on 16 rows): {shares}."
    facts = next((repeat["runs"]["warm"]["facts"] for repeat in repeats if "runs" in repeat), {})
    if "kv_places" in facts:
        paged, whole = facts["kv_empty"] / facts["kv_places"], facts["kv_contiguous_empty"] / facts["kv_contiguous"]
        text += (
            f" Of the blocks that running rows held {100 * paged:.0f} % was empty; of one piece for each row, as long as it may become, "
            f"{100 * whole:.0f} % would have been."
        )
    return text + "\n"


def draw(results: dict[str, Any]) -> None:
    """Bars of warm tokens a second, with the spread, one panel a workload."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "sparkinfer"  # the same results give the same file
    from matplotlib import pyplot as plt

    workloads = list(results["workloads"].values())
    heights = [1 + len(found["peers"]) for found in workloads]
    figure, axes = plt.subplots(
        len(workloads),
        1,
        figsize=(8, 0.32 * sum(heights) + 0.6 * len(workloads)),
        squeeze=False,
        height_ratios=heights,
        layout="constrained",
    )
    for axis, found in zip(axes[:, 0], workloads, strict=True):
        figures = {name: summary(peer, found) for name, peer in found["peers"].items()}
        names = sorted((name for name in figures if "warm" in figures[name]), key=lambda name: figures[name]["warm"])
        speeds = [figures[name]["warm"] for name in names]
        spread = [
            [s - figures[n]["low"] for n, s in zip(names, speeds, strict=True)],
            [figures[n]["high"] - s for n, s in zip(names, speeds, strict=True)],
        ]
        colours = ["tab:orange" if found["peers"][name]["is_ours"] else "tab:gray" for name in names]
        axis.barh([found["peers"][name]["title"] for name in names], speeds, xerr=spread, color=colours)
        if "floor" in found:
            axis.axvline(
                found["tokens"]["warm"] / found["floor"]["total_s"], color="black", linestyle="--", linewidth=1
            )
        axis.set_title(f"{found['title']}, {found['rows']} rows", loc="left", fontsize=9)
        axis.tick_params(labelsize=8)
    axes[-1, 0].set_xlabel("tokens out a second, warm; the dashed line is the floor's speed", fontsize=8)
    figure.savefig(PLOT, metadata={"Date": None})
    plt.close(figure)


def _caption(found: dict[str, Any]) -> str:
    loads = [repeat["load_before"] for peer in found["peers"].values() for repeat in peer["repeats"]]
    text = (
        f"{found['rows']} rows, {found['prompt_tokens']['warm']:,} prompt tokens, {found['tokens']['warm']:,} tokens out in the warm run; "
        f"load of the machine before the cells {min(loads, default=0):.1f} to {max(loads, default=0):.1f}."
    )
    if "floor" in found:
        phases = ", ".join(
            f"{name[:-2]} {value:.2f}"
            for name, value in found["floor"].items()
            if name.endswith("_s") and name != "total_s"
        )
        text += f" The floor is {found['floor']['total_s']:.2f} s ({phases})."
    return text + "\n\n"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
