"""How long a model takes to be ready: bare imports and from_pretrained, against sparkinfer's load, in fresh processes.

Against them stand sparkinfer's load and its whole engine: load, self-check, KV pool, compiled kernels, one answered token.

    python benchmarks/load_time.py [--model sample] [--rounds 3]

They are measured in turn, so that all see the same page cache and the same machine. Prints seconds (median) by the clock and of
the CPU, their ratios, and the memory of each: anonymous (this process's own) and file (mapped weights, which processes share).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

BARE = """
import time; start = time.perf_counter()
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
imported = time.perf_counter()
tokenizer = AutoTokenizer.from_pretrained({folder!r})
model = AutoModelForCausalLM.from_pretrained({folder!r}, dtype=torch.float32).eval()
"""

OURS = """
import time; start = time.perf_counter()
from sparkinfer.model import fetch, load, resolve
from sparkinfer.text.tokenizer import load_tokenizer
folder = fetch(resolve({uri!r}))
imported = time.perf_counter()
model = load(folder, dtype="fp32", device="cpu")
tokenizer = load_tokenizer(folder)
"""

ENGINE = """
import time; start = time.perf_counter()
from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.create import create_engine
from sparkinfer.model import fetch, resolve
from sparkinfer.text.tokenizer import load_tokenizer
from sparkinfer.types import SamplingParams
ref = resolve({uri!r})
folder = fetch(ref)
engine = create_engine(EngineSpec(model=ref, fallback=False, settings=EngineSettings(batch_timeout_ms=0, device="cpu")), folder)
tokenizer = load_tokenizer(folder)
engine.add(EngineRequest(request_id=0, prompt_ids=range(3, 67), sampling=SamplingParams(max_tokens=1)))
while engine.has_work():
    engine.step()
model = None
"""

REPORT = """
end, cpu = time.perf_counter(), time.process_time()
import json, torch
if model is not None:
    with torch.inference_mode():
        model(torch.arange(3, 67)[None])  # touch every weight
smaps = dict(l.split(":") for l in open("/proc/self/smaps_rollup").read().splitlines()[1:])
kib = lambda name: int(smaps[name].split()[0])
print(json.dumps({"seconds": end - start, "cpu_s": cpu, "anon_mb": kib("Pss_Anon") / 1024, "file_mb": kib("Pss_File") / 1024}))
"""


def measure(program: str) -> dict[str, float]:
    """Figures of one fresh process."""
    done = subprocess.run([sys.executable, "-c", program + REPORT], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--model", default="sample")
    arguments.add_argument("--rounds", type=int, default=3)
    asked = arguments.parse_args()
    from sparkinfer.model import fetch, resolve

    folder = str(fetch(resolve(asked.model)))
    rounds: dict[str, list[dict[str, float]]] = {"bare": [], "load": [], "engine": []}
    for _ in range(asked.rounds):
        rounds["bare"].append(measure(BARE.format(folder=folder)))
        rounds["load"].append(measure(OURS.format(uri=asked.model)))
        rounds["engine"].append(measure(ENGINE.format(uri=asked.model)))
    medians = {name: {key: statistics.median(r[key] for r in rows) for key in rows[0]} for name, rows in rounds.items()}
    for name, figures in medians.items():
        print(f"{name:<12}" + "  ".join(f"{key} {value:8.1f}" for key, value in figures.items()))
    for name in ("load", "engine"):
        wall, cpu = (medians[name][key] / medians["bare"][key] for key in ("seconds", "cpu_s"))
        print(f"{name} over bare: {wall:.2f} by the clock, {cpu:.2f} in CPU seconds (target: at most 1.3)")


if __name__ == "__main__":
    main()
