"""Errors of a GPU after which the process can use it no more: a wrong address, a failed assertion of a kernel, broken memory.

Every later call raises as well, so that the engine has to end and be started anew; taken for the rows' failure, all that follow would
fail. Memory that runs out is another error, and passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sparkinfer.engine.plan import RunnerLost

#: torch has a class for them since 2.8.
DEVICE_ERRORS: tuple[type[Exception], ...] = tuple(filter(None, [getattr(torch, "AcceleratorError", None)]))


@contextmanager
def ended_by_device_errors() -> Iterator[None]:
    """Run what a GPU computes.

    Raises:
        RunnerLost: the device is lost to this process.
    """
    try:
        yield
    except DEVICE_ERRORS as error:
        first = (str(error).splitlines() or [""])[0]
        raise RunnerLost(f"The device is lost to this engine, which ends ({type(error).__name__}: {first}).") from error
