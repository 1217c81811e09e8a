"""The decoder layers as torch.compile makes them, where that is faster: tried once for each structure of model, never by default.

A trial compiles and measures in a process of its own, so that one that takes too long is ended and one that hangs holds up nobody. What
it found lies in the user's cache under the structure, dtype and device, beside torch's own compiled code: another model of the same
structure, or the same one with new weights, is not tried again and compiles in seconds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.attention import hook
from sparkinfer.engine.child import child_command, child_environment
from sparkinfer.errors import DownloadFailed
from sparkinfer.model.cache import cache_root
from sparkinfer.model.folder import read_config
from sparkinfer.model.lock import host_lock

_LOG = logging.getLogger(__name__)
_INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"
#: What a configuration says that no compiled code depends on.
_NO_STRUCTURE = ("_name_or_path", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id")
#: Compiled steps must be this much faster: less is noise, and every start pays for loading the code.
_LEAST_GAIN = 1.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a trial found.

    Attributes:
        gain: speed of compiled steps over that of plain ones; None: it came to no end.
        compile_s: seconds that compiling took.
        budget_s: seconds that it was given; with more it is tried again where it came to no end.
        reason: why there is no gain to speak of, for the log.
    """

    gain: float | None
    compile_s: float
    budget_s: float
    reason: str = ""

    @property
    def pays(self) -> bool:
        """Whether the layers are to be compiled."""
        return self.gain is not None and self.gain >= _LEAST_GAIN

    def __str__(self) -> str:
        gain = f"{self.gain:.2f} times the speed" if self.gain is not None else f"no figure ({self.reason})"
        return f"torch.compile: {gain}, {self.compile_s:.0f} s to compile; {'used' if self.pays else 'not used'}"


def verdict_of(spec: EngineSpec, folder: Path, *, dtype: str, device: str, threads: int) -> Verdict:
    """What is known of compiling this structure, by a trial now where nothing is.

    Args:
        spec: which engine, with the seconds that a trial may take.
        folder: the model's files.
        dtype: name of the class of weights.
        device: torch device.
        threads: CPU threads.
    """
    place = cache_root() / "compiled" / structure(read_config(folder), dtype=dtype, device=device, threads=threads)
    os.environ[_INDUCTOR_CACHE] = str(place / "code")  # for this process's own compiling too
    try:
        place.mkdir(parents=True, exist_ok=True)
        with host_lock(place / "lock", timeout=spec.settings.start_timeout_s):
            found = _known_or_tried(spec, folder, place / "verdict.json", threads)
    except (OSError, DownloadFailed) as error:  # a cache that is full or read-only, or somebody else's endless trial
        found = Verdict(gain=None, compile_s=0.0, budget_s=0.0, reason=f"the cache cannot be used: {error}")
    _LOG.info("%s", found)
    return found


def structure(config: dict[str, object], *, dtype: str, device: str, threads: int) -> str:
    """Digest of all that compiled code depends on: the model's structure, but no weight; dtype, device, threads and versions."""
    shape = {name: value for name, value in config.items() if name not in _NO_STRUCTURE}
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()
    versions = [metadata.version(name) for name in ("torch", "transformers", "sparkinfer")]
    text = json.dumps([shape, dtype, kind, threads, versions], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _processor() -> list[object]:
    """What code for "this machine's" instructions depends on."""
    from llvmlite import binding

    return [binding.get_host_cpu_name(), sorted(name for name, has in binding.get_host_cpu_features().items() if has)]


def compile_layers(model: PreTrainedModel) -> int:
    """Let torch.compile have the decoder layers, for any number of tokens; attention stays as it is.

    Returns:
        How many layers.
    """
    hook.hide_from_compiler()
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.compile(dynamic=True)
    return len(layers)


def _known_or_tried(spec: EngineSpec, folder: Path, path: Path, threads: int) -> Verdict:
    known, budget = _load(path), spec.settings.compile_budget_s
    if known is not None and (known.gain is not None or known.budget_s >= budget):
        return known
    found = _tried(spec, folder, budget, threads)
    fresh = path.with_suffix(".part")
    fresh.write_text(json.dumps(asdict(found)))
    fresh.replace(path)
    return found


def _tried(spec: EngineSpec, folder: Path, budget_s: float, threads: int) -> Verdict:
    """A trial in a process of its own; see ``compile_trial.py``."""
    start = time.monotonic()
    command = child_command("sparkinfer.engine.compile_trial", str(folder))
    try:
        done = subprocess.run(
            command,
            input=spec.to_json(),
            stdout=subprocess.PIPE,
            text=True,
            timeout=budget_s,
            env=child_environment(threads),
            check=False,
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Verdict(gain=None, compile_s=budget_s, budget_s=budget_s, reason=f"not ready after {budget_s:.0f} s")
    except (OSError, ValueError, IndexError):
        spent = time.monotonic() - start
        return Verdict(gain=None, compile_s=spent, budget_s=budget_s, reason="the trial failed, see the log above")
    return Verdict(gain=found["plain_s"] / found["compiled_s"], compile_s=found["compile_s"], budget_s=budget_s)


def _load(path: Path) -> Verdict | None:
    try:
        return Verdict(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
