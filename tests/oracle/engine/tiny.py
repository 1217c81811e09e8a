"""Small random models of many architectures, prompts for them, and the oracle: transformers' own greedy generate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from sparkinfer.config.settings import EngineSettings
from sparkinfer.config.specs import EngineSpec
from sparkinfer.engine.base import Engine, EngineRequest, TokenOutput
from sparkinfer.engine.create import build_engine
from sparkinfer.types import ModelRef, SamplingParams

VOCAB = 320
WINDOW = 8
CLOSE = 1e-4  # two logits nearer than this may change places by rounding

_BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_WINDOWED = {"sliding_window": WINDOW}
_GPT2 = {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256, "initializer_range": 0.25}
PACKED: dict[str, dict[str, object]] = {
    "llama": _BASE,
    "mistral": _BASE | _WINDOWED,
    "qwen2": _BASE | _WINDOWED | {"use_sliding_window": True, "max_window_layers": 1},
    "qwen3": _BASE,
    "gemma2": _BASE | _WINDOWED | {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0},
    "gemma3_text": _BASE | _WINDOWED | {"query_pre_attn_scalar": 16},
    "phi3": _BASE | _WINDOWED | {"original_max_position_embeddings": 256},
    "gpt2": _GPT2,
    "opt": _BASE | {"ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.25},
    "olmo2": _BASE,
    "starcoder2": _BASE | _WINDOWED,
    "stablelm": _BASE | {"partial_rotary_factor": 0.5, "use_parallel_residual": True},
    "granite": _BASE | {"logits_scaling": 2.0, "attention_multiplier": 0.1, "residual_multiplier": 0.5},
    "cohere": _BASE | {"logit_scale": 0.25, "use_qk_norm": True},
    "gpt_neox": _BASE | {"rotary_pct": 0.5},
    "mixtral": _BASE | _WINDOWED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": _BASE | _WINDOWED | {"num_local_experts": 4, "num_experts_per_tok": 2},
}
STATIC: dict[str, dict[str, object]] = {
    "lfm2": _BASE | {"layer_types": ["conv", "full_attention", "conv"], "block_ff_dim": 96},
    "bloom": {"vocab_size": VOCAB, "hidden_size": 64, "n_layer": 2, "n_head": 4, "initializer_range": 0.25},
    "mamba": {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "state_size": 8,
        "initializer_range": 0.25,
    },
}


def model(kind: str, **changes: object) -> PreTrainedModel:
    """A model of that architecture with random weights, always the same ones."""
    torch.manual_seed(11)
    values = (PACKED | STATIC)[kind] | changes
    config = AutoConfig.for_model(kind, **values)
    attention = {"attn_implementation": "eager"} if kind in PACKED else {}
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **attention)
    return made.eval().requires_grad_(False)


def prompts(lengths: Sequence[int], *, shared: int = 0) -> list[list[int]]:
    """Random prompts of these lengths whose first ``shared`` tokens are the same."""
    generator = torch.Generator().manual_seed(5)
    head = torch.randint(3, VOCAB, (shared,), generator=generator).tolist()
    return [head + torch.randint(3, VOCAB, (n - shared,), generator=generator).tolist() for n in lengths]


@torch.inference_mode()
def generated(made: PreTrainedModel, prompt: list[int], max_tokens: int) -> list[int]:
    """Greedy tokens of transformers' generate, which nothing but their number ends."""
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    made.generation_config.eos_token_id = None
    out = made.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=max_tokens, pad_token_id=0)
    return out[0, len(prompt) :].tolist()


def spec(*, fallback: bool = True, **settings: object) -> EngineSpec:
    """A spec for a model that is already there."""
    ref = ModelRef(uri="tiny", name="tiny", version="0", fingerprint="0", kind="folder", location="")
    return EngineSpec(
        model=ref, fallback=fallback, settings=EngineSettings(**{"threads": 1, "batch_timeout_ms": 0, **settings})
    )


def engine(made: PreTrainedModel, *, fallback: bool = True, dtype: str = "fp32", **settings: object) -> Engine:
    """The engine that sparkinfer builds for a loaded model."""
    return build_engine(made, spec(fallback=fallback, **settings), dtype=dtype, device="cpu", threads=1)


@dataclass
class Answer:
    """What came out for one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    last: TokenOutput | None = None


def answers(running: Engine, requests: Sequence[EngineRequest]) -> list[Answer]:
    """Run requests to their end, in order of request id."""
    found = {r.request_id: Answer() for r in requests}
    for request in requests:
        running.add(request)
    while running.has_work():
        for output in running.step():
            assert output.error is None, output.error
            answer = found[output.request_id]
            answer.token_ids += output.token_ids
            answer.logprobs += output.logprobs or ()
            answer.last = output
    return [found[r.request_id] for r in requests]


def greedy(running: Engine, given: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
    """Greedy tokens of each prompt, all of them asked for at once."""
    sampling = SamplingParams(max_tokens=max_tokens)
    requests = [EngineRequest(request_id=i, prompt_ids=p, sampling=sampling) for i, p in enumerate(given)]
    return [answer.token_ids for answer in answers(running, requests)]


def flips(
    made: PreTrainedModel, given: Sequence[list[int]], want: Sequence[list[int]], got: Sequence[list[int]]
) -> int:
    """Rows that differ from the oracle, each proved to be a tie by rounding.

    Raises:
        AssertionError: a row differs where the oracle's two best logits are not close.
    """
    made.set_attn_implementation("eager")
    count = 0
    for prompt, expected, found in zip(given, want, got, strict=True):
        if expected == found:
            continue
        at = next(i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b)
        with torch.inference_mode():
            logits = made(input_ids=torch.tensor([prompt + expected[:at]]), use_cache=False).logits[0, -1]
        best = logits.topk(2).values
        assert best[0] - best[1] < CLOSE, (
            f"token {at}: {found[at]} instead of {expected[at]}, {best[0] - best[1]:.2e} apart"
        )
        count += 1
    return count
