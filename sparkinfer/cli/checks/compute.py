"""torch, devices and memory: what an engine runs on."""

from __future__ import annotations

import json
import subprocess
import sys

from sparkinfer.cli.checks.base import Check, fail, ok, size, warn
from sparkinfer.cli.checks.runtime import installed
from sparkinfer.model import memory

IMPORT_TIMEOUT_S = 120
#: Room for copies of single layers while weights are loaded.
WEIGHTS_FACTOR = 1.2
#: The KV pool that the overhead is told for; a smaller one works, with fewer rows at once.
KV_BYTES = 1024**3

#: Runs in a process of its own: this one never imports torch, and never touches a device.
_LOOK = """
import json, torch
cuda = torch.cuda.is_available()
devices = []
for i in range(torch.cuda.device_count() if cuda else 0):
    free, total = torch.cuda.mem_get_info(i)
    devices.append([torch.cuda.get_device_name(i), free, total])
print(json.dumps({"version": torch.__version__, "devices": devices, "threads": torch.get_num_threads()}))
"""

_UNKNOWN = warn(
    "devices", "unknown, for torch could not be asked", "Mend what the line torch says, then run this again."
)


def check_torch() -> list[Check]:
    """The versions of torch and transformers, and the devices that torch sees: always both lines."""
    if installed("torch") is None:
        return [fail("torch", "torch is not installed", "pip install torch"), _UNKNOWN]
    try:
        said = subprocess.run(
            [sys.executable, "-c", _LOOK], capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        slow = f"{installed('torch')}, but its import took more than {IMPORT_TIMEOUT_S} s"
        return [warn("torch", slow, "Look for a slow disk or a busy machine."), _UNKNOWN]
    if said.returncode != 0:
        last = (said.stderr.strip().splitlines() or ["no message"])[-1]
        return [fail("torch", f"it cannot be imported: {last}", "Reinstall torch in this environment."), _UNKNOWN]
    seen = json.loads(said.stdout.splitlines()[-1])
    torch = ok("torch", f"{seen['version']}, transformers {installed('transformers')}")
    return [torch, _devices(seen["devices"], seen["threads"])]


def _devices(gpus: list[tuple[str, int, int]], threads: int) -> Check:
    if not gpus:
        return ok("devices", f"no GPU; {threads} CPU threads")
    told = ", ".join(
        f"cuda:{i} {name} ({size(free)} of {size(total)} free)" for i, (name, free, total) in enumerate(gpus)
    )
    return ok("devices", told)


def check_memory(available: int, limit: int, weights: int | None) -> Check:
    """Whether an engine for the model fits, and what executors on a cluster must set aside for it.

    Args:
        available: bytes free for new processes now.
        limit: bytes that this container or host has at all.
        weights: bytes of the model's weights as loaded, or None where the model is not here yet.
    """
    free = f"{size(available)} of {size(limit)} available"
    if weights is None:
        return ok("memory", f"{free}; what the model needs is known once it is here")
    overhead = memory.overhead_mb(weights, KV_BYTES)
    told = f"{free}; executors need spark.executor.memoryOverhead={overhead}m"
    smallest = int(weights * WEIGHTS_FACTOR) + memory.PROCESS_BYTES
    if available < smallest:
        return fail("memory", f"{told}; the engine needs {size(smallest)}", "Use a smaller model or a larger machine.")
    if available < smallest + KV_BYTES:
        return warn(
            "memory", told, "The KV pool will be small, with fewer rows at once; free memory or use a larger machine."
        )
    return ok("memory", told)
