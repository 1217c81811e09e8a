"""A GPU that is lost to its process ends the engine; an error of one step does not."""

from __future__ import annotations

import pytest
import torch

from sparkinfer.engine.device_errors import DEVICE_ERRORS, ended_by_device_errors
from sparkinfer.engine.engine import PackedEngine
from sparkinfer.engine.plan import RunnerLost, StepPlan, StepResult
from tests.support.engine_runs import engine_of, request, runner_of


def test_torch_has_the_error() -> None:
    assert (torch.AcceleratorError,) == DEVICE_ERRORS
    assert not issubclass(torch.OutOfMemoryError, DEVICE_ERRORS)


def engine_that_meets(error: Exception, monkeypatch: pytest.MonkeyPatch) -> PackedEngine:
    """An engine with one request of one token, whose next step raises this on its device."""
    engine = engine_of()

    def fails(plan: StepPlan) -> StepResult:
        with ended_by_device_errors():
            raise error

    monkeypatch.setattr(runner_of(engine), "run", fails)
    engine.add(request(0, (1,)))
    return engine


def test_an_illegal_address_ends_the_engine_and_not_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nmore")
    engine = engine_that_meets(error, monkeypatch)
    with pytest.raises(RunnerLost, match="illegal memory access was encountered\\)"):
        engine.step()


def test_memory_that_runs_out_is_a_step_s_own_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    (output,) = engine_that_meets(torch.OutOfMemoryError("CUDA out of memory"), monkeypatch).step()
    assert output.error is not None
    assert output.error[0] == "OUT_OF_MEMORY"
