"""torch.compile: tried once for a structure within its seconds, remembered, used only where it pays, and then with the same tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from sparkinfer.engine import build, compiled
from sparkinfer.engine.compile_trial import batch_of
from sparkinfer.engine.compiled import Verdict, structure, verdict_of
from sparkinfer.engine.create import _is_compiled, create_engine
from sparkinfer.errors import InvalidConfig
from sparkinfer.model.folder import read_config
from tests.oracle.engine import tiny
from tests.support.engines import eventually
from tests.support.processes import pids_of

PROMPTS = tiny.prompts((5, 20, 33))
WHERE = {"dtype": "fp32", "device": "cpu", "threads": 1}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARKINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.model("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_trial_that_takes_too_long_is_ended_and_tried_again_with_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tiny.spec(compile_budget_s=0.2)
    first = verdict_of(spec, folder, **WHERE)
    assert not first.pays
    assert "not ready after 0 s" in str(first)
    engine = create_engine(spec, folder)  # starts as if nothing had been asked for, and does not try again
    assert engine.info.label == "paged/cpu-numba/fp32"
    engine.close()
    budgets = []

    def tries(_spec: object, _folder: Path, budget_s: float, _threads: int) -> Verdict:
        budgets.append(budget_s)
        return Verdict(gain=0.9, compile_s=3.0, budget_s=budget_s)

    monkeypatch.setattr(compiled, "_tried", tries)
    for budget in (0.1, 0.5, 0.6, 9.0):
        verdict_of(tiny.spec(compile_budget_s=budget), folder, **WHERE)
    assert budgets == [0.5]
    assert str(verdict_of(spec, folder, **WHERE)) == "torch.compile: 0.90 times the speed, 3 s to compile; not used"


def test_a_trial_that_fails_is_a_verdict_too(tmp_path: Path) -> None:
    tiny.model("bloom").save_pretrained(tmp_path / "bloom")
    found = compiled._tried(tiny.spec(compile_budget_s=100.0), tmp_path / "bloom", 100.0, 1)
    assert found.gain is None
    assert "failed" in found.reason


def test_new_weights_are_the_same_structure_and_another_size_dtype_or_device_is_not(tmp_path: Path) -> None:
    for seed in (1, 2):
        model = tiny.model("llama")
        torch.manual_seed(seed)
        model.lm_head.weight.normal_()
        model.config.eos_token_id = seed
        model.save_pretrained(tmp_path / str(seed))
    same = {structure(read_config(tmp_path / str(seed)), **WHERE) for seed in (1, 2)}
    assert len(same) == 1
    config = read_config(tmp_path / "1")
    others = [
        structure(config | {"hidden_size": 128}, **WHERE),
        structure(config, **(WHERE | {"dtype": "bf16"})),
        structure(config, **(WHERE | {"threads": 2})),
    ]
    assert len({*same, *others}) == 4


def test_without_a_cache_nothing_is_tried_and_the_engine_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKINFER_CACHE", "/proc/no-such-folder")
    assert "cache" in str(verdict_of(tiny.spec(compile_budget_s=1.0), folder, **WHERE))


def test_layers_that_cannot_be_compiled_after_all_run_as_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_model: object) -> int:
        raise RuntimeError("no C++ compiler")

    pays = Verdict(gain=2.0, compile_s=1.0, budget_s=9.0)
    monkeypatch.setattr(compiled, "verdict_of", lambda *_, **__: pays)
    monkeypatch.setattr(build, "compile_layers", fails)
    engine = create_engine(tiny.spec(compile_budget_s=9.0), folder)
    assert engine.info.label == "paged/cpu-numba/fp32"
    assert len(tiny.greedy(engine, PROMPTS[:1], 3)[0]) == 3


@pytest.mark.slow
def test_a_trial_ends_with_its_engine(folder: Path) -> None:
    program = (
        "import time; from pathlib import Path; from tests.oracle.engine import tiny;"
        "from sparkinfer.engine.compiled import verdict_of;"
        f"verdict_of(tiny.spec(compile_budget_s=500.0), Path({str(folder)!r}), dtype='fp32', device='cpu', threads=1)"
    )
    engine = subprocess.Popen([sys.executable, "-c", program])
    try:
        eventually(lambda: trials_of(engine.pid))
    finally:
        engine.kill()
        engine.wait()
    eventually(lambda: not trials_of(engine.pid), seconds=20)


def trials_of(pid: int) -> list[int]:
    """Trials that this process has started."""
    return pids_of("sparkinfer.engine.compile_trial", lambda command: str(pid) in command)


@pytest.mark.parametrize("num_blocks", [5, 12, 1000])
def test_the_trial_s_steps_stay_within_the_pool(num_blocks: int) -> None:
    batch = batch_of(32, 64, 1, block_size=16, num_blocks=num_blocks)
    assert len(batch.context_lens) == min(32, num_blocks // 5)
    assert int(batch.tables.max()) < num_blocks
    assert int(batch.slots.max()) < num_blocks * 16


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"strict": True}, "no effect with strict."),
        ({"tensor_parallel": 2}, "no effect with tensor_parallel."),
        ({"strict": True, "weights_memory": 1 << 30}, "no effect with strict and weights_memory."),
    ],
)
def test_a_budget_without_effect_is_told_with_the_setting_that_is_in_its_way(
    folder: Path, settings: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not _is_compiled(tiny.spec(compile_budget_s=9.0, **settings), folder, **WHERE)
    assert named in caplog.text
    assert not _is_compiled(tiny.spec(**settings), folder, **WHERE)
    assert caplog.text.count("no effect") == 1


def test_seconds_are_checked() -> None:
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidConfig, match="compile_budget_s"):
            tiny.spec(compile_budget_s=wrong)
    with pytest.raises(InvalidConfig, match="shorter than start_timeout_s"):
        tiny.spec(compile_budget_s=600.0)


@pytest.mark.slow
def test_compiled_layers_give_the_same_tokens_and_are_tried_once(folder: Path, cache: Path) -> None:
    spec = tiny.spec(compile_budget_s=500.0)
    found = verdict_of(spec, folder, **WHERE)
    assert found.gain is not None
    assert 1 < found.compile_s < 500
    (path,) = cache.glob("compiled/*/verdict.json")
    assert Verdict(**json.loads(path.read_text())) == found
    assert any((path.parent / "code").rglob("*.so")), "compiled code is kept beside it"
    path.write_text(json.dumps(asdict(found) | {"gain": 2.0}))  # on this machine it pays
    want = tiny.greedy(create_engine(tiny.spec(), folder), PROMPTS, 6)
    engine = create_engine(spec, folder)
    assert any(layer._compiled_call_impl is not None for layer in engine.runner._model.model.layers)
    assert tiny.greedy(engine, PROMPTS, 6) == want
