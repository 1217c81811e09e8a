"""What a run's results become: tables, aims, a plot and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report


def cell(*, warm_s: float, first_s: float = 2.0, batch: float | None = None) -> dict[str, Any]:
    facts = {} if batch is None else {"batch": batch}
    runs = {
        "first": {"seconds": first_s, "first_row_s": 0.5, "facts": facts},
        "warm": {"seconds": warm_s, "first_row_s": 0.4, "facts": facts},
    }
    about = {"load_s": 3.0, "peak_mb": 900.0, "load_before": 1.5, "where": {"attention": 1.0, "matrix products": 3.0}}
    return {"runs": runs, "agreement": {"rows": 8, "same_rows": 7, "tokens": 0.96}, **about}


@pytest.fixture
def results() -> dict[str, Any]:
    failed = {"error": "exit code 1\nTraceback\nImportError: no such thing", "load_before": 2.5}
    peers = {
        "ours": {
            "title": "ours",
            "is_ours": True,
            "options": {},
            "repeats": [cell(warm_s=s, batch=6.0) for s in (1.0, 2.0, 4.0)],
        },
        "row_by_row": {
            "title": "row by row",
            "is_ours": False,
            "options": {"slots": 2},
            "repeats": [cell(warm_s=20.0)],
        },
        "vllm": {"title": "vLLM", "is_ours": False, "options": {"batch": 8}, "repeats": [failed]},
    }
    machine = {
        "cpu": "a CPU",
        "cores": 2,
        "threads": 2,
        "memory_gb": 8,
        "instruction_sets": ["avx2"],
        "packages": {"torch": "2"},
    }
    extract = {
        "title": "extract: some tokens out",
        "rows": 8,
        "prompt_tokens": {"first": 2000, "warm": 2100},
        "tokens": {"first": 300, "warm": 400},
        "floor": {"prefill_s": 0.6, "decode_s": 0.4, "total_s": 1.0, "prefill_tokens": 900},
        "peers": peers,
    }
    peaks = {"gflops_by_rows": {"1": 3.0, "256": 90.0}, "fp32_gflops": 90.0, "int8_gops": None, "read_gbs": 20.0}
    return {
        "began": "2026-01-01T00:00:00Z",
        "commit": "abc",
        "model": "m",
        "machine": machine,
        "peaks": peaks,
        "workloads": {"extract": extract},
        "scripts": {},
    }


def test_the_table_has_medians_spread_and_ratios(results: dict[str, Any]) -> None:
    text = report.markdown(results)
    assert (
        "| ours | 200.0 | 100.0 to 400.0 | 150.0 | 2.00 |  | 0.5 | 3.0 | 900 | 6.0 | 7 of 8 rows, 96.0 % of tokens |"
        in text
    )
    assert "| row by row | 20.0 | one run | 150.0 | 20.00 | 10.00x | 0.5 | 3.0 | 900 | – |" in text
    assert "matrix products 75 %, attention 25 %" in text
    assert "load of the machine before the cells 1.5 to 2.5" in text
    assert "at least 8.00x | 10.00x | reached" in text
    assert "at most 1.30x | 2.00x | missed" in text


def test_a_peer_that_failed_is_told_with_its_reason(results: dict[str, Any]) -> None:
    assert "| vLLM | failed: ImportError: no such thing |" in report.markdown(results)


def test_publishing_writes_results_plot_and_page(
    results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(report, "PLOT", tmp_path / "performance.svg")
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results" / "latest.json")
    report.publish(results)
    once = page.read_text()
    report.publish(results)
    assert page.read_text() == once
    assert once.startswith("before\n") and once.endswith("\nafter\n") and "old" not in once
    assert "](performance.svg)" in once
    assert json.loads((tmp_path / "results" / "latest.json").read_text()) == results
    assert (tmp_path / "performance.svg").stat().st_size < 200_000
