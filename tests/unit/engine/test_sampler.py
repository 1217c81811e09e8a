"""The sampler against plain definitions, on small vocabularies."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sparkinfer.engine.base import EngineRequest
from sparkinfer.engine.sampler import Sampler
from sparkinfer.engine.sequence import Sequence
from sparkinfer.types import SamplingParams

VOCAB = 50


def sequence(
    prompt: tuple[int, ...] = (1, 2),
    generated: tuple[int, ...] = (),
    *,
    key: int = 0,
    choices: tuple[tuple[int, ...], ...] | None = None,
    stop_ids: frozenset[int] = frozenset(),
    **sampling: Any,
) -> Sequence:
    request = EngineRequest(
        request_id=0,
        prompt_ids=prompt,
        sampling=SamplingParams(**sampling),
        noise_key=key,
        choices=choices,
        stop_ids=stop_ids,
    )
    made = Sequence.from_request(request)
    made.token_ids += generated
    return made


def draw(logits: torch.Tensor, sequences: list[Sequence], **kwargs: Any) -> list[int]:
    tokens, broken = Sampler(**kwargs).sample(logits.clone(), sequences)
    assert not broken
    return [token.token_id for token in tokens]


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn((1, VOCAB), generator=torch.Generator().manual_seed(3)) * 2


def drawn(logits: torch.Tensor, **sampling: Any) -> set[int]:
    """The ids that 2,000 keys draw."""
    sequences = [sequence(key=key, **sampling) for key in range(2000)]
    return set(draw(logits.expand(2000, -1), sequences))


def test_greedy_takes_the_best_logit(logits: torch.Tensor) -> None:
    assert draw(logits, [sequence()]) == [int(logits.argmax())]


def test_draws_follow_the_tempered_distribution(logits: torch.Tensor) -> None:
    n = 4000
    picked = draw(logits.expand(n, -1), [sequence(key=key, temperature=1.5) for key in range(n)])
    shares = torch.bincount(torch.tensor(picked), minlength=VOCAB) / n
    expected = torch.softmax(logits[0] / 1.5, 0)
    assert float((shares - expected).abs().sum()) < 0.12


def test_a_draw_does_not_depend_on_its_neighbours(logits: torch.Tensor) -> None:
    others = [sequence(key=k, temperature=t, top_k=k) for k, t in ((1, 0.0), (2, 3.0), (3, 0.5))]
    mine = sequence(key=77, temperature=1.0, top_p=0.9)
    alone = draw(logits, [mine])[0]
    assert all(draw(logits.expand(4, -1), [*others[:i], mine, *others[i:]])[i] == alone for i in range(4))


def test_the_same_key_draws_anew_at_each_position(logits: torch.Tensor) -> None:
    flat = torch.zeros_like(logits)
    assert len({draw(flat, [sequence(generated=(4,) * n, temperature=1.0)])[0] for n in range(30)}) > 10


def test_top_k_keeps_the_k_best(logits: torch.Tensor) -> None:
    assert drawn(logits, temperature=5.0, top_k=3) == set(logits[0].topk(3).indices.tolist())


@pytest.mark.parametrize("top_p", [0.3, 0.6, 0.95])
def test_top_p_keeps_the_smallest_set_that_reaches_it(logits: torch.Tensor, top_p: float) -> None:
    order = logits[0].argsort(descending=True)
    before = torch.softmax(logits[0], 0)[order].cumsum(0) - torch.softmax(logits[0], 0)[order]
    assert drawn(logits, temperature=1.0, top_p=top_p) <= set(order[before < top_p].tolist())
    assert int(order[0]) in drawn(logits, temperature=1.0, top_p=top_p)


def test_top_p_beyond_the_first_thousand_tokens_still_cuts_in_the_right_place() -> None:
    flat = torch.zeros((1, 4000))
    flat[0, :10] = -20.0
    assert not {draw(flat, [sequence(key=k, temperature=1.0, top_p=0.9)])[0] for k in range(50)} & set(range(10))


def test_min_p_keeps_what_is_likely_enough_beside_the_best(logits: torch.Tensor) -> None:
    shares = torch.softmax(logits[0] / 3.0, 0)
    kept = set(torch.nonzero(shares >= 0.5 * shares.max())[:, 0].tolist())
    assert drawn(logits, temperature=3.0, min_p=0.5) == kept


def test_repetition_penalty_is_that_of_transformers(logits: torch.Tensor) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    seen = logits[0].topk(3).indices.tolist()
    made = sequence(prompt=(seen[0], 1), generated=(seen[1], seen[2], seen[2]), repetition_penalty=1.7)
    want = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([made.token_ids]), logits.clone())
    assert draw(logits, [made]) == [int(want.argmax())]
    assert int(want.argmax()) != int(logits.argmax())


def test_the_models_own_repetition_penalty_holds_where_the_request_names_none(logits: torch.Tensor) -> None:
    best = int(logits.argmax())
    assert draw(logits, [sequence(prompt=(best,))], repetition_penalty=100.0) != [best]
    assert draw(logits, [sequence(prompt=(best,), repetition_penalty=1.0)], repetition_penalty=100.0) == [best]


def test_presence_and_frequency_count_generated_tokens_only() -> None:
    logits = torch.zeros((1, VOCAB))
    logits[0, 7], logits[0, 8] = 3.0, 2.0
    assert draw(logits, [sequence(prompt=(7,), presence_penalty=2.0)]) == [7]
    assert draw(logits, [sequence(generated=(7,), presence_penalty=2.0)]) == [8]
    assert draw(logits, [sequence(generated=(7,), frequency_penalty=0.6)]) == [7]
    assert draw(logits, [sequence(generated=(7, 7), frequency_penalty=0.6)]) == [8]


def test_logprobs_are_those_of_the_untempered_logits(logits: torch.Tensor) -> None:
    rows = [sequence(key=9, temperature=2.0, logprobs=1, repetition_penalty=1.5), sequence()]
    tokens, _ = Sampler().sample(logits.expand(2, -1).clone(), rows)
    assert tokens[0].logprob == pytest.approx(float(torch.log_softmax(logits[0], 0)[tokens[0].token_id]), abs=1e-5)
    assert tokens[1].logprob is None


@pytest.mark.parametrize("temperature", [0.0, 1.0, 100.0])
def test_only_a_choice_can_come_out_whatever_the_temperature(logits: torch.Tensor, temperature: float) -> None:
    choices = ((3, 4), (3, 5), (6,))
    rows = [sequence(key=k, choices=choices, temperature=temperature, top_p=0.95) for k in range(100)]
    rows += [sequence(key=k, generated=(3,), choices=choices, temperature=temperature) for k in range(100)]
    picked = draw(logits.expand(200, -1), rows)
    assert set(picked[:100]) <= {3, 6}
    assert set(picked[100:]) <= {4, 5}
    if temperature == 100.0:
        assert set(picked) == {3, 4, 5, 6}


def test_constrained_and_free_rows_share_a_batch(logits: torch.Tensor) -> None:
    best = int(logits.argmax())
    worst = int(logits.argmin())
    assert draw(logits.expand(3, -1), [sequence(), sequence(choices=((worst,),)), sequence()]) == [best, worst, best]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_without_usable_logits_is_reported_and_the_others_are_drawn(logits: torch.Tensor, value: float) -> None:
    rows = logits.expand(3, -1).clone()
    rows[1, 4] = value
    tokens, broken = Sampler().sample(rows, [sequence(), sequence(temperature=1.0), sequence()])
    assert list(broken) == [1]
    assert str(value) in broken[1]
    assert tokens[0].token_id == tokens[2].token_id == int(logits.argmax())
