"""One model over two ranks on the CPU (gloo): the same tokens as one, refused where it cannot be, and no rank left behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.engine.attention.base import PackedBatch
from sparkinfer.engine.base import Engine
from sparkinfer.engine.batch_frames import read_batch, to_bytes
from sparkinfer.engine.create import create_engine
from sparkinfer.engine.plan import RunnerLost
from sparkinfer.errors import InvalidConfig, UnsupportedModel
from tests.oracle.engine import tiny
from tests.support.engines import eventually
from tests.support.processes import pids_of

PROMPTS = tiny.prompts((5, 20, 33, 70))
NEW_TOKENS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny.model("llama").save_pretrained(path)
    return path


@pytest.fixture
def split(folder: Path) -> Iterator[Engine]:
    engine = create_engine(tiny.spec(tensor_parallel=2, threads=2, kv_memory=4 << 20), folder)
    yield engine
    engine.close()
    engine.close()
    assert followers_of(os.getpid()) == []


def followers_of(leader: int) -> list[int]:
    """Pids of the ranks that this process leads."""
    return pids_of("sparkinfer.engine.follower", lambda command: str(leader) in command)


def test_two_ranks_give_the_tokens_of_one_and_the_engine_ends_with_either(folder: Path, split: Engine) -> None:
    whole = create_engine(tiny.spec(kv_memory=4 << 20), folder)
    assert split.info.label == "paged/cpu-numba/fp32/tp2"
    assert split.info.weights_bytes == whole.info.weights_bytes
    assert split.info.kv_bytes == pytest.approx(whole.info.kv_bytes, rel=0.01)  # each rank has its heads of every block
    want = tiny.greedy(whole, PROMPTS, NEW_TOKENS)
    assert tiny.greedy(split, PROMPTS, NEW_TOKENS) == want
    assert tiny.greedy(split, PROMPTS[::-1], NEW_TOKENS) == want[::-1]  # now with cached prefixes, in another order
    assert split.stats()["cached_tokens"] > 0
    (follower,) = followers_of(os.getpid())
    os.kill(follower, signal.SIGKILL)
    with pytest.raises(RunnerLost, match="tp2"):
        tiny.greedy(split, PROMPTS, NEW_TOKENS)


def test_a_rank_that_dies_while_all_are_built_ends_the_engine(folder: Path) -> None:
    program = (
        "from pathlib import Path; from tests.oracle.engine import tiny; from sparkinfer.engine import ranks\n"
        "from sparkinfer.engine.create import create_engine\n"
        "start, ranks._GRACE_S = ranks._start, 0.5\n"
        "def dies(*arguments):\n    process = start(*arguments)\n    process.kill()\n    return process\n"
        f"ranks._start = dies\ncreate_engine(tiny.spec(tensor_parallel=2), Path({str(folder)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 70, done.stderr
    assert "Rank 1 of this engine has ended (code -9)" in done.stderr


@pytest.mark.slow
def test_ranks_end_with_their_leader_though_they_are_stopped(folder: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tests.oracle.engine import tiny;"
        "from sparkinfer.engine.create import create_engine;"
        f"create_engine(tiny.spec(tensor_parallel=2, threads=2, kv_memory=1 << 20), Path({str(folder)!r}));"
        "print('ready', flush=True); time.sleep(600)"
    )
    leader = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    try:
        assert leader.stdout.readline() == "ready\n"
        (follower,) = followers_of(leader.pid)
        os.kill(follower, signal.SIGSTOP)
    finally:
        leader.kill()
        leader.wait()
    eventually(lambda: followers_of(leader.pid) == [], seconds=20)


def test_what_cannot_be_split_is_said_before_anything_is_loaded(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="4 attention heads and 2 heads .* one of 1, 2"):
        create_engine(tiny.spec(tensor_parallel=3), folder)
    tiny.model("gpt2").save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="no tensor-parallel plan for gpt2"):
        create_engine(tiny.spec(tensor_parallel=2), tmp_path)
    with pytest.raises(InvalidConfig, match="tensor_parallel"):
        create_engine(replace(tiny.spec(tensor_parallel=2), dtype="int8"), folder)
    with pytest.raises(InvalidConfig, match="cannot be had together"):
        tiny.spec(tensor_parallel=2, weights_memory=1 << 20)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=5), st.data())
def test_a_batch_comes_to_a_rank_as_it_was_announced(shapes: list[tuple[int, int]], data: st.DataObject) -> None:
    lengths, width = np.array([tokens for tokens, _ in shapes]), max(blocks for _, blocks in shapes)
    numbers = np.arange(lengths.sum())
    batch = PackedBatch(
        token_ids=numbers + 7,
        positions=numbers + 11,
        slots=numbers * 3,
        query_starts=np.concatenate([[0], np.cumsum(lengths)]),
        context_lens=lengths + 5,
        tables=np.arange(len(shapes) * width).reshape(len(shapes), width),
        sample_rows=np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers)))),
    )
    frame = to_bytes(batch)
    stream = io.BytesIO(frame * 2 + frame[:-1])
    for _ in range(2):
        read = read_batch(stream)
        assert read is not None
        for name in PackedBatch.__slots__:
            np.testing.assert_array_equal(getattr(read, name), getattr(batch, name))
    assert read_batch(stream) is None  # the leader ended in the middle of a frame
