"""The GPU kernel's bookkeeping, on a CPU: tables, lengths, windows, sinks and layouts handed to a stand-in that does what torch's
documentation says of ``varlen_attn``. On a card the same tests run with the real one (``make test-gpu``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sparkinfer.engine.attention import varlen
from sparkinfer.engine.attention.base import AttentionCall, LayerShape, PackedBatch
from sparkinfer.engine.attention.reference import ReferenceAttention
from sparkinfer.engine.attention.varlen import VarlenAttention, best_attention
from sparkinfer.engine.kv import KvPool

BLOCK, BLOCKS, HEADS, KV_HEADS, DIM = 4, 24, 4, 2, 16


def documented(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
) -> Any:
    """Attention of variable lengths as documented, sequence by sequence, queries at the end of their keys."""
    assert cu_seq_q.dtype is torch.int32
    assert (block_table is None) == (seqused_k is None) == (cu_seq_k is not None)
    assert enable_gqa or query.shape[1] == key.shape[-2]
    out, log_sums = torch.empty_like(query), torch.empty(query.shape[1], len(query))
    for index in range(len(cu_seq_q) - 1):
        rows = slice(int(cu_seq_q[index]), int(cu_seq_q[index + 1]))
        if block_table is not None:
            used = int(seqused_k[index])
            k, v = (blocks[block_table[index].long()].flatten(0, 1)[:used] for blocks in (key, value))
        else:
            k, v = (flat[int(cu_seq_k[index]) : int(cu_seq_k[index + 1])] for flat in (key, value))
        assert rows.stop - rows.start <= max_q
        assert len(k) <= max_k
        k, v = (t.float().repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", query[rows].float(), k) * scale
        at = torch.arange(len(k) - (rows.stop - rows.start), len(k))[:, None]
        seen = torch.arange(len(k))[None]
        hidden = seen > at + window_size[1]
        if window_size[0] >= 0:
            hidden |= seen < at - window_size[0]
        scores = scores.masked_fill(hidden, float("-inf"))
        out[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(out.dtype)
        log_sums[:, rows] = scores.logsumexp(-1)
    return (out, log_sums) if return_aux is not None else out


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", documented)


def pool(v_dim: int = DIM) -> KvPool:
    shapes = [LayerShape(kv_heads=KV_HEADS, k_dim=DIM, v_dim=v_dim)] * 2
    return KvPool(shapes, num_blocks=BLOCKS, block_size=BLOCK, dtype=torch.float32, device=torch.device("cpu"))


def steps() -> list[PackedBatch]:
    """A prefill of three sequences with scattered blocks, then one of them in a chunk beside two that decode."""
    tables = np.array([[5, 17, 2], [9, 0, 0], [20, 3, 0]])
    found = []
    for before, new in (((0, 0, 0), (6, 3, 8)), ((6, 3, 8), (5, 1, 0)), ((11, 4, 8), (1, 0, 0))):
        kept = [i for i, count in enumerate(new) if count]
        lengths = np.array([new[i] for i in kept])
        firsts = np.array([before[i] for i in kept])
        owner = np.repeat(np.arange(len(kept)), lengths)
        positions = np.concatenate([np.arange(f, f + n) for f, n in zip(firsts, lengths, strict=True)])
        slots = tables[np.array(kept)[owner], positions // BLOCK] * BLOCK + positions % BLOCK
        found.append(
            PackedBatch(
                token_ids=np.zeros(len(positions), np.int64),
                positions=positions,
                slots=slots,
                query_starts=np.concatenate([[0], np.cumsum(lengths)]),
                context_lens=firsts + lengths,
                tables=tables[kept],
                sample_rows=np.cumsum(lengths) - 1,
            )
        )
    return found


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("extra", ["plain", "sinks", "softcap", "narrow values"])
def test_it_gives_what_the_reference_kernel_gives_step_after_step(paged: bool, window: int | None, extra: str) -> None:
    v_dim = 8 if extra == "narrow values" else DIM
    call = AttentionCall(
        scaling=0.3,
        window=window,
        softcap=4.0 if extra == "softcap" else None,
        sinks=torch.linspace(-1, 2, HEADS) if extra == "sinks" else None,
    )
    ours, theirs = VarlenAttention(pool(v_dim), paged=paged), ReferenceAttention(pool(v_dim))
    generator = torch.Generator().manual_seed(1)
    for batch in steps():
        for layer in range(2):
            q, k, v = (
                torch.randn((batch.num_tokens, heads, dim), generator=generator)
                for heads, dim in ((HEADS, DIM), (KV_HEADS, DIM), (KV_HEADS, v_dim))
            )
            for kernel in (ours, theirs):
                kernel.begin(batch)
            got, want = (kernel.forward(layer, q, k, v, call) for kernel in (ours, theirs))
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("stand_in")
def test_the_paged_kernel_is_the_first_choice_and_leaves_the_pool_clean() -> None:
    fresh = pool()
    assert best_attention(fresh).name == "varlen"
    assert all(float(blocks.abs().max()) == 0 for blocks in (*fresh.keys, *fresh.values))


def test_a_card_that_takes_no_block_tables_gets_gathered_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_tables(*args: Any, block_table: torch.Tensor | None = None, **kwargs: Any) -> Any:
        if block_table is not None:
            raise RuntimeError("Paged KV cache block size must be divisible by 256")
        return documented(*args, **kwargs)

    monkeypatch.setattr(varlen, "varlen_attn", without_tables)
    assert best_attention(pool()).name == "varlen-gathered"


def test_a_kernel_that_gives_other_numbers_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(*args: Any, **kwargs: Any) -> Any:
        return documented(*args, **kwargs) + 0.5

    monkeypatch.setattr(varlen, "varlen_attn", noisy)
    assert best_attention(pool()).name == "reference"


def test_where_torch_has_no_such_kernel_the_reference_answers() -> None:
    assert best_attention(pool()).name == "reference", "there is none for a CPU"


def test_a_kernel_that_gives_no_numbers_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        return documented(*args, **kwargs) * float("nan")

    monkeypatch.setattr(varlen, "varlen_attn", broken)
    assert best_attention(pool()).name == "reference"
