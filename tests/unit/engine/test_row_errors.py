"""What a row's error says where its step raised: memory is told apart from everything else, however torch says it."""

from __future__ import annotations

import pytest
import torch

from sparkinfer.engine.row_errors import row_error

_CPU = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4398046511104 bytes."


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError(_CPU),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_memory_is_named_with_what_to_change(error: Exception) -> None:
    code, message = row_error(error)
    assert code == "OUT_OF_MEMORY"
    assert "kv_fraction" in message


def test_what_torch_says_of_this_machine_is_known() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 50)
    assert row_error(raised.value)[0] == "OUT_OF_MEMORY"


def test_anything_else_is_told_as_it_is() -> None:
    assert row_error(IndexError("index 7 is out of bounds"))[0] == "INFERENCE_FAILED"
    assert "IndexError: index 7 is out of bounds" in row_error(IndexError("index 7 is out of bounds"))[1]
