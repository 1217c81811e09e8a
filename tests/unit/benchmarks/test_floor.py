"""The benchmark's own sums: what must be computed, and whether answers are the oracle's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import aims, report
from benchmarks.agreement import compare
from benchmarks.cell import run_cell
from benchmarks.floor import decode_batches, floor, unique_prefill
from benchmarks.workloads import WORKLOADS, Row, read_rows

PEAKS = {
    "body_s": {"1": 1.0, "4": 2.0, "8": 4.0},
    "head_s": {"1": 0.1, "8": 0.4},
    "fp32_gflops": 1e-9,  # one operation a second
    "layers": 1,
    "heads": 1,
    "head_dim": 1,
}


def test_a_shared_prefix_is_computed_once() -> None:
    tokens, contexts = unique_prefill([(1, 2, 3), (1, 2, 4, 5), (9,)])
    assert tokens == 3 + 2 + 1
    assert contexts == (1 + 2 + 3) + (3 + 4) + 1


def test_decode_steps_hold_the_rows_that_are_not_done() -> None:
    assert decode_batches([1, 2, 4]) == [2, 1, 1]
    assert decode_batches([1, 1]) == []
    assert sum(decode_batches([3] * 300)) == 600
    assert max(decode_batches([3] * 300)) == 256


def test_the_floor_counts_repeated_rows_once_only_with_reuse() -> None:
    prompts, lengths = [[1, 2], [1, 2]], [2, 2]
    each, once = (floor(prompts, lengths, PEAKS, reuse=reuse) for reuse in (False, True))
    assert once["decode_s"] == 1.0  # one step of one row
    assert each["decode_s"] == pytest.approx(4 / 3)  # one step of two rows, between one (1 s) and four (2 s)
    assert each["prefill_tokens"] == once["prefill_tokens"] == 2
    assert each["total_s"] == pytest.approx(sum(v for k, v in each.items() if k.endswith("_s") and k != "total_s"))


class Letters:
    """A tokenizer of single letters; 0 is the end token."""

    eos_token_id = 0

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(chr(96 + i) for i in ids if i)

    def __call__(self, text: str, *, add_special_tokens: bool) -> Letters:
        assert not add_special_tokens
        self.input_ids = [ord(letter) - 96 for letter in text]
        return self


def test_agreement_counts_tokens_up_to_where_a_row_parts() -> None:
    rows = [
        Row(id=str(i), text="", max_tokens=4, answer=answer) for i, answer in enumerate([[1, 2, 3, 4], [5, 6], None])
    ]
    found = compare(["abxd", [5, 6], "whatever"], rows, Letters(), ends_at_eos=False)
    assert (found.rows, found.same_rows) == (2, 1)
    assert found.tokens == pytest.approx((2 + 2) / (4 + 2))


def test_an_answer_that_ends_at_the_end_token_is_compared_up_to_it() -> None:
    rows = [Row(id="0", text="", max_tokens=4, answer=[1, 2, 0, 4])]
    assert compare(["ab"], rows, Letters(), ends_at_eos=True).same_rows == 1
    assert compare(["ab"], rows, Letters(), ends_at_eos=False).same_rows == 0


@pytest.mark.parametrize("name", WORKLOADS)
def test_rows_of_two_runs_and_the_tuning_are_other_rows(name: str) -> None:
    sets = read_rows(WORKLOADS[name], num_rows=16)
    ids = [{row.id for row in part} for part in (sets.first, sets.warm, sets.tuning)]
    assert all(ids) and not ids[0] & ids[1] and not ids[0] & ids[2] and not ids[1] & ids[2]
    assert len(ids[0]) == (8 if name == "duplicates" else 16)


def test_more_rows_than_there_are_is_an_error() -> None:
    with pytest.raises(SystemExit, match="ask for fewer"):
        read_rows(WORKLOADS["summarise"], num_rows=4000)


def test_a_finished_cell_is_not_run_again_and_a_failed_one_is(tmp_path: Path) -> None:
    target = tmp_path / "cell.json"
    arguments = {"environment": "", "threads": 1, "limit_s": 60.0}
    failed = run_cell(target, ["benchmarks.no_such_module"], {}, **arguments)
    assert "no_such_module" in failed["error"]
    assert not target.exists()
    target.write_text(json.dumps({"wall_s": 1.0}))
    assert run_cell(target, ["benchmarks.no_such_module"], {}, **arguments) == {"wall_s": 1.0}


def test_a_peer_is_described_without_its_packages() -> None:
    program = "import sys, benchmarks.peers, benchmarks.measure, benchmarks.workloads; print('torch' in sys.modules, 'pyarrow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        cwd=report.ROOT,
        env={**os.environ},
        check=False,
    )
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_the_page_has_one_place_for_the_results() -> None:
    page = report.PAGE.read_text()
    assert page.count(report.BEGIN) == page.count(report.END) == 1


def test_an_aim_is_reached_or_missed_by_the_run_s_own_figures() -> None:
    titles = {"ours": "ours", "row_by_row": "row by row"}
    figures = {"extract": {"ours": {"warm": 90.0, "over_floor": 1.25}, "row_by_row": {"warm": 10.0}}}
    assert "| extract: ours over row by row | at least 8.00x | 9.00x | reached |" in aims.table(figures, titles)
    figures["extract"]["ours"] = {"warm": 70.0, "over_floor": 1.4}
    found = aims.table(figures, titles)
    assert found.count("missed") == 2
    assert "over the floor | at most 1.30x | 1.40x | missed |" in found
    assert aims.table({}, {}) == ""
    figures["extract"]["row_by_row"] = {"failed": "failed: ended"}
    assert "over row by row | at least 8.00x | a peer failed | not measured |" in aims.table(figures, titles)
