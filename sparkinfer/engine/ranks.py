"""One model split over several devices: a process a device, all of which run the same steps.

Tensor parallelism (Megatron-LM, Shoeybi et al. 2019) by the plan that transformers has for the model: each rank holds a part of every
layer's heads and columns, and what they find is summed. The engine's own process is rank 0: it schedules and samples. The others are its
followers (``follower.py``); each step's batch comes to them through their standard input, and its end ends them. Who fails in a
step leaves the others in the middle of a sum, so that the engine ends with any of them and is started anew.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from math import gcd
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.attention.base import PackedBatch, pack
from sparkinfer.engine.batch_frames import to_bytes
from sparkinfer.engine.build import about, build_runner
from sparkinfer.engine.child import child_command, child_environment
from sparkinfer.engine.engine import PackedEngine
from sparkinfer.engine.plan import RunnerLost, StepPlan, StepResult
from sparkinfer.engine.probe import text_config
from sparkinfer.engine.runner import PackedRunner
from sparkinfer.errors import DeviceNotFound, InvalidConfig, UnsupportedModel
from sparkinfer.model import load
from sparkinfer.model.loading import QUANTISED

_LOG = logging.getLogger(__name__)
#: Seconds for a follower to end after its input has, and for the leader to notice that one has ended.
_GRACE_S = 5.0
_RANK_LOST = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One of the processes that hold a model together.

    Attributes:
        number: 0 is the leader.
        ranks: how many there are.
        store: file by which they find each other.
        device: torch device of this one.
        dtype: name of the class of weights.
        threads: CPU threads of this one.
    """

    number: int
    ranks: int
    store: str
    device: str
    dtype: str
    threads: int


def create_split_engine(
    spec: EngineSpec, folder: Path, *, devices: Sequence[str], dtype: str, threads: int
) -> PackedEngine:
    """Start the followers and build the engine with them.

    Args:
        spec: which engine.
        folder: the model's files.
        devices: a torch device for each rank.
        dtype: name of the class of weights.
        threads: CPU threads of each rank.

    Raises:
        InvalidConfig: a class of weights that is made at load.
        UnsupportedModel: transformers has no plan for it, its heads cannot be shared evenly, or it cannot run packed.
        InsufficientMemory: not one sequence fits the KV memory of some rank.
        DeviceNotFound: the leader's GPU is not the first that this process sees.
    """
    if dtype in QUANTISED:
        raise InvalidConfig(f"tensor_parallel splits weights as they are stored; it cannot be had with dtype {dtype}.")
    check_divides(folder, len(devices), trust_remote_code=spec.trust_remote_code)
    if devices[0] not in ("cpu", "cuda:0"):  # transformers counts a rank's device from the first
        raise DeviceNotFound("tensor_parallel needs an engine process of its own; use engine_mode='shared'.")
    place = tempfile.mkdtemp(prefix="sparkinfer-ranks-")
    ranks = [
        Rank(number=i, ranks=len(devices), store=f"{place}/store", device=device, dtype=dtype, threads=threads)
        for i, device in enumerate(devices)
    ]
    followers = Followers(place=place)
    try:
        for rank in ranks[1:]:
            followers.start(spec, folder, rank)
        return PackedEngine(LeadingRunner(join(ranks[0], spec, folder), followers), spec.settings)
    except BaseException:
        followers.close()
        raise


def check_divides(folder: Path, ranks: int, *, trust_remote_code: bool) -> None:
    """Whether transformers can split the model so; said before anything is loaded.

    Raises:
        UnsupportedModel: it cannot; the message says what would do.
    """
    from transformers import AutoConfig

    config = text_config(AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code))
    if not getattr(config, "base_model_tp_plan", None):
        raise UnsupportedModel(
            f"transformers has no tensor-parallel plan for {config.model_type}; leave the engine setting tensor_parallel out."
        )
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    shared = gcd(heads, kv_heads)
    if shared % ranks:
        allowed = ", ".join(str(n) for n in range(1, shared + 1) if shared % n == 0)
        raise UnsupportedModel(
            f"{folder.name} has {heads} attention heads and {kv_heads} heads of keys and values, which {ranks} ranks cannot share "
            f"evenly; set tensor_parallel to one of {allowed}."
        )


def join(rank: Rank, spec: EngineSpec, folder: Path) -> PackedRunner:
    """Meet the other ranks, load this one's part, and build its runner with them in step."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # they are all on this host, whatever its name resolves to
    torch.set_num_threads(rank.threads)
    dist.init_process_group(
        backend="gloo" if rank.device == "cpu" else "nccl",
        store=FileStore(rank.store, rank.ranks),
        rank=rank.number,
        world_size=rank.ranks,
        timeout=timedelta(seconds=max(spec.settings.start_timeout_s, spec.settings.stall_timeout_s)),
    )
    model = load(
        folder,
        dtype=rank.dtype,
        device=rank.device,
        trust_remote_code=spec.trust_remote_code,
        ranks=rank.ranks,
    )
    return build_runner(model, spec, about(model, spec, dtype=rank.dtype, device=rank.device), threads=rank.threads)


class Followers:
    """The processes of ranks 1 and up.

    Where one ends and this process does not see it, for it waits for its part of a sum, this process is ended too.

    Args:
        place: folder of the ranks' store, removed with them.
    """

    def __init__(self, *, place: str) -> None:
        self._place = place
        self._processes: list[subprocess.Popen[bytes]] = []
        self._closing = threading.Event()

    def start(self, spec: EngineSpec, folder: Path, rank: Rank) -> None:
        """Start one.

        Raises:
            OSError: it cannot be started, or ended at once.
        """
        process = _start(spec, folder, rank)
        self._processes.append(process)
        threading.Thread(target=self._watch, args=(process, rank.number), name="watch-rank", daemon=True).start()

    def announce(self, batch: PackedBatch) -> None:
        """Let them run this batch as well.

        Raises:
            OSError: one of them has ended.
        """
        frame = to_bytes(batch)
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(frame)
            process.stdin.flush()

    def close(self) -> None:
        """End them; repeating it changes nothing."""
        self._closing.set()
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if dist.is_initialized():
            dist.destroy_process_group()
        shutil.rmtree(self._place, ignore_errors=True)

    def _watch(self, process: subprocess.Popen[bytes], number: int) -> None:
        code = process.wait()
        if not self._closing.wait(_GRACE_S):  # a leader that noticed is closing by now
            _LOG.error("Rank %d of this engine has ended (code %s), and so does the engine.", number, code)
            _end_process()


class LeadingRunner:
    """The leader's runner, whose steps the followers run too; implements :class:`sparkinfer.engine.plan.Runner`.

    Args:
        runner: rank 0's own.
        followers: the other ranks.
    """

    def __init__(self, runner: PackedRunner, followers: Followers) -> None:
        self.num_blocks = runner.num_blocks
        self.block_size = runner.block_size
        self.info = runner.info
        self.default_is_plain = runner.default_is_plain
        self._runner = runner
        self._followers = followers

    def run(self, plan: StepPlan) -> StepResult:
        """Run one step on all ranks.

        Raises:
            RunnerLost: it failed on one of them; the others wait for a sum that never comes.
        """
        try:
            self._followers.announce(pack(plan.items, self.block_size))
            return self._runner.run(plan)
        except Exception as error:
            raise RunnerLost(f"One of {self.info.label}'s ranks failed ({type(error).__name__}: {error}).") from error

    def close(self) -> None:
        """End the followers and give memory back."""
        self._runner.close()
        self._followers.close()


def _start(spec: EngineSpec, folder: Path, rank: Rank) -> subprocess.Popen[bytes]:
    environment = child_environment(rank.threads) | {"LOCAL_RANK": rank.device.partition(":")[2] or "0"}
    command = child_command("sparkinfer.engine.follower")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)
    assert process.stdin is not None
    told = {"spec": spec.to_json(), "folder": str(folder), "rank": asdict(rank)}  # before all batches
    process.stdin.write(json.dumps(told).encode() + b"\n")
    process.stdin.flush()
    return process


def _end_process() -> None:
    """End the engine as after any death: its clients start it anew."""
    logging.shutdown()
    os._exit(_RANK_LOST)
