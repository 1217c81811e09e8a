"""int8 and int4 products of torch against float32 ones, by tokens: whether this machine has a use for them.

Weights have a scale a row; activations are quantised a token where the product needs that, and it counts. GFLOP/s, best of
seven rounds.

    python benchmarks/integers.py [--threads 2]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

from sparkinfer.host.process import waiting_threads

os.environ.update(waiting_threads())  # as the engine process has them, before torch is imported

import torch
from torch.nn import functional as F

SHAPES = ((576, 576), (576, 1536), (1536, 576))
TOKENS = (1, 8, 64, 256, 1024)
GROUP = 32


def forms_of(x: torch.Tensor, weight: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """The same product in each form."""
    scales = weight.abs().amax(1) / 127
    whole = (weight / scales[:, None]).round().to(torch.int8)
    nibbles = torch.randint(0, 16, weight.shape, dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(nibbles, 1)
    zeros = torch.randn(weight.shape[1] // GROUP, weight.shape[0], 2)

    def both() -> torch.Tensor:
        of_token = x.abs().amax(1, keepdim=True) / 127
        rounded = (x / of_token).round_().to(torch.int8)
        return torch._int_mm(rounded, whole.t()).float().mul_(of_token).mul_(scales)

    return {
        "float32": lambda: F.linear(x, weight),
        "int8 x int8": both,
        "float32 x int8": lambda: torch.ops.aten._weight_int8pack_mm(x, whole, scales),
        "float32 x int4": lambda: torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, GROUP, zeros),
    }


def seconds_of(form: Callable[[], torch.Tensor]) -> float:
    """The best of seven rounds."""
    form()
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        form()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Print a line for each shape and number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print(f"instruction set: {torch.backends.cpu.get_cpu_capability()}")
    with torch.inference_mode():
        for width, out in SHAPES:
            for tokens in TOKENS:
                flop = 2.0 * tokens * width * out
                found = {
                    name: flop / seconds_of(form) / 1e9
                    for name, form in forms_of(torch.randn(tokens, width), torch.randn(out, width)).items()
                }
                shown = "  ".join(f"{name} {speed:6.1f}" for name, speed in found.items())
                print(f"{width:5d} -> {out:5d}, {tokens:5d} tokens  {shown}", flush=True)


if __name__ == "__main__":
    main()
