"""The matrix products of a small model in several forms, and the temporaries around them, on one thread: what pays, what does not.

    python benchmarks/products.py [--hidden 576 --inner 1536 --vocab 49152]

Prints GFLOP per CPU second (best of several rounds taken in turn), so that a busy machine disturbs little.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numba
import numpy as np
import torch
from torch.nn import functional as F

from sparkinfer.engine.kernel_cache import use_kernel_cache

use_kernel_cache()

from sparkinfer.engine.fused_kernels import gate_rows
from sparkinfer.engine.small_products_kernel import multiply

WEIGHTS = 8  # as many different ones in turn, so that none but the smallest stay in the cache
LARGE = 10_000  # outputs from which on one is enough for that
FLOP_A_ROUND = 3e10


def compare(forms: dict[str, Callable[[], object]], flop: float) -> str:
    """GFLOP per CPU second of each form."""
    best = dict.fromkeys(forms, float("inf"))
    for form in forms.values():
        form()
    for _ in range(max(3, min(20, int(FLOP_A_ROUND / flop)))):
        for name, form in forms.items():
            began = time.process_time()
            form()
            best[name] = min(best[name], time.process_time() - began)
    return "  ".join(f"{name} {flop / seconds / 1e9:5.1f}" for name, seconds in best.items())


def linear(tokens: int, width: int, out: int) -> str:
    """Weights as they lie, transposed in memory, packed by oneDNN, by numpy's OpenBLAS, and as they lie by our own kernel."""
    x = torch.randn(tokens, width)
    weights = [torch.randn(out, width) for _ in range(WEIGHTS if out < LARGE else 1)]
    turned = [w.t().contiguous() for w in weights]
    packed = [torch.ops.mkldnn._reorder_linear_weight(w, tokens) for w in weights]
    answer = torch.empty(tokens, out).numpy()
    forms = {
        "as it lies": lambda: [F.linear(x, w) for w in weights],
        "transposed": lambda: [torch.mm(x, w) for w in turned],
        "packed": lambda: [torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "") for w in packed],
        "OpenBLAS": lambda: [np.dot(x.numpy(), w.numpy().T, out=answer) for w in weights],
        "ours": lambda: [multiply((answer,), x.numpy(), (w.numpy(),)) for w in weights],
    }
    return compare(forms, 2.0 * tokens * width * out * len(weights))


def gated_mlp(tokens: int, width: int, inner: int) -> str:
    """A gated MLP with a temporary for every step, in place, and with its gate as one pass."""
    x = torch.randn(1, tokens, width)
    gate, up, down = torch.randn(inner, width), torch.randn(inner, width), torch.randn(width, inner)
    forms = {
        "temporaries": lambda: F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down),
        "in place": lambda: F.linear(F.silu(F.linear(x, gate), inplace=True).mul_(F.linear(x, up)), down),
        "one pass": lambda: F.linear(gated(F.linear(x, gate), F.linear(x, up)), down),
    }
    return compare(forms, 6.0 * tokens * width * inner)


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` in the place of ``gate``."""
    gate_rows(gate[0].numpy(), up[0].numpy(), 0, gate.shape[1])
    return gate


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--inner", type=int, default=1536)
    parser.add_argument("--vocab", type=int, default=49152)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    hidden, inner = asked.hidden, asked.inner
    shapes = {
        "q": (hidden, hidden),
        "q+k+v": (hidden, hidden * 5 // 3),
        "gate": (hidden, inner),
        "gate+up": (hidden, 2 * inner),
        "k": (hidden, hidden // 3),
        "down": (inner, hidden),
        "head": (hidden, asked.vocab),
    }
    with torch.inference_mode():
        for tokens in (4, 16, 32, 64, 128, 512):
            for name, (width, out) in shapes.items():
                print(f"{tokens:5d} tokens  {name:8s} {linear(tokens, width, out)}", flush=True)
        for tokens in (200, 512, 1024, 2048):
            print(f"{tokens:5d} tokens  MLP      {gated_mlp(tokens, hidden, inner)}", flush=True)


if __name__ == "__main__":
    main()
