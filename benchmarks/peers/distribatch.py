"""distribatch on Spark with its transformers engine: the closest rival.

Its jobs have one ``max_tokens`` for all rows, and its batches end when their last row has ended. So that rows end at lengths
of their own here too, the model's folder gets a subclass whose ``generate`` stops with the longest row of the batch
(transformers loads such code where it is trusted); each row's text is then cut to its own number of tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import Ask, Outcome, Setting
from benchmarks.peers.on_spark import frame, local_session
from benchmarks.peers.predict_batch_udf import mean_batch

PACKAGES = Path(__file__).parents[2] / ".bench-envs" / "distribatch"
PACED = """
import hashlib, json, os, time
from pathlib import Path
from transformers import {base}

class Paced({base}):
    def generate(self, input_ids=None, attention_mask=None, **kwargs):
        lengths = json.loads(Path(os.environ["BENCH_LENGTHS"]).read_text())
        rows = (ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask))
        own = [lengths[hashlib.sha256(json.dumps(row).encode()).hexdigest()] for row in rows]
        self.generation_config.eos_token_id = None
        kwargs["max_new_tokens"] = max(own)
        out = super().generate(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        for row, length in enumerate(own):
            out[row, input_ids.shape[1] + length :] = kwargs["pad_token_id"]
        done = Path(os.environ["BENCH_LENGTHS"] + ".first")
        if not done.exists():
            done.write_text(str(time.time()))
        return out
"""


class Peer:
    """One slot with all threads, as its own guide has it for a model that fills the machine."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._lengths = Path(setting.scratch) / "lengths.json"

    def load(self) -> None:
        """Start the session and let the worker load the model."""
        sys.path.append(str(PACKAGES))
        paths = [str(PACKAGES), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        os.environ["BENCH_LENGTHS"] = str(self._lengths)
        os.environ["HF_MODULES_CACHE"] = f"{self._setting.scratch}/modules"
        self._folder = paced_folder(Path(self._setting.folder), Path(self._setting.scratch) / "model")
        threads = {"spark.executorEnv.OMP_NUM_THREADS": self._setting.threads}
        self._spark = local_session(self._setting, slots=1, config=threads)
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self._setting.folder)
        chat = [{"role": "user", "content": self._setting.message("Hello.")}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        self.run([Ask(text="Hello.", max_tokens=1, prompt_ids=ids)], {"batch": 1})

    def run(self, asks: list[Ask], options: dict[str, Any]) -> Outcome:
        """Collect the job's output."""
        from distribatch import GenerateJob, Sampling
        from distribatch.models import PathModel

        lengths = {hashlib.sha256(json.dumps(ask.prompt_ids).encode()).hexdigest(): ask.max_tokens for ask in asks}
        self._lengths.write_text(json.dumps(lengths))
        done = self._lengths.with_name(self._lengths.name + ".first")
        done.unlink(missing_ok=True)
        batch = int(options["batch"])
        job = GenerateJob(
            model=PathModel(path=str(self._folder)),
            engine="transformers",
            prompt=self._setting.prompt,
            sampling=Sampling(max_tokens=max(ask.max_tokens for ask in asks)),
            engine_options={"dtype": "float32", "micro_batch_size": batch, "trust_remote_code": True},
        )
        began = time.time()
        made = job.run(frame(self._spark, asks, partitions=1), backend="spark", batch_size=batch)
        found = sorted(made.select("number", "output", "output_error").collect(), key=lambda row: row.number)
        broken = [row.output_error for row in found if row.output_error is not None]
        if broken:
            raise RuntimeError(f"{len(broken)} rows failed: {broken[0]}")
        return Outcome(
            answers=[row.output for row in found],
            first_row_s=float(done.read_text()) - began,
            ends_at_eos=True,
            facts={"batch": mean_batch([ask.max_tokens for ask in asks], batch)},
        )

    def where(self, asks: list[Ask]) -> dict[str, float]:
        """Not told."""
        return {}

    def close(self) -> None:
        """End Spark."""
        self._spark.stop()


def paced_folder(source: Path, target: Path) -> Path:
    """The model's folder by links, with the subclass beside it and no end token in its configs."""
    target.mkdir()
    for file in source.iterdir():
        if file.name not in ("config.json", "generation_config.json"):
            (target / file.name).symlink_to(file)
    config = json.loads((source / "config.json").read_text())
    (target / "paced.py").write_text(PACED.format(base=config["architectures"][0]))
    config |= {"auto_map": {"AutoModelForCausalLM": "paced.Paced"}}
    (target / "config.json").write_text(json.dumps(config))
    return target
