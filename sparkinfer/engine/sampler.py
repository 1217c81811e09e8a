"""The next token of each sequence from its logits, the whole batch at once.

Order, as transformers has it: penalties, choices, temperature, top_k, top_p, min_p; then the best of score + Gumbel noise.
Greedy is the plain argmax of the scores. Log-probabilities are those of the model's own logits, before all of that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sparkinfer.engine import noise
from sparkinfer.engine.plan import SampledToken
from sparkinfer.engine.sequence import Sequence

_NEG = float("-inf")
_HEAD = 1024  # top_p is settled within so many best tokens almost always; a full sort is the exception
_DRAW_ROWS = 16  # rows drawn at once: bounds the noise's memory to rows x vocabulary x 8 bytes


@dataclass(frozen=True, slots=True)
class Sampler:
    """Draws tokens.

    Attributes:
        repetition_penalty: the model's own (generation_config), for requests that name none.
    """

    repetition_penalty: float = 1.0

    def sample(self, logits: torch.Tensor, sequences: list[Sequence]) -> tuple[list[SampledToken], dict[int, str]]:
        """One token a row.

        Args:
            logits: float ``[n, vocabulary]``; may be changed in place.
            sequences: whose they are, in the same order.

        Returns:
            Tokens, and for rows without usable logits their index and why.
        """
        logits = logits.float()
        broken = self._broken(logits)
        logprob_rows = [i for i, s in enumerate(sequences) if s.request.sampling.logprobs is not None]
        raw = logits[logprob_rows] if logprob_rows else None
        self._penalise(logits, sequences)
        token_ids = self._choose(logits, sequences)
        tokens = [SampledToken(token_id) for token_id in token_ids]
        if raw is not None:
            chosen = torch.tensor([token_ids[i] for i in logprob_rows], device=raw.device)
            values = raw.gather(1, chosen[:, None])[:, 0] - torch.logsumexp(raw, 1)
            for i, value in zip(logprob_rows, values.tolist(), strict=True):
                tokens[i].logprob = value
        return tokens, broken

    @staticmethod
    def _broken(logits: torch.Tensor) -> dict[int, str]:
        best = logits.amax(1)  # carries a NaN of its row
        bad = torch.nonzero(~torch.isfinite(best))[:, 0].tolist()
        return {
            i: f"The model's best logit is {best[i].item()}; its weights or this prompt overflow the dtype."
            for i in bad
        }

    def _penalise(self, logits: torch.Tensor, sequences: list[Sequence]) -> None:
        for row, sequence in zip(logits, sequences, strict=True):
            sampling = sequence.request.sampling
            repetition = sampling.repetition_penalty or self.repetition_penalty
            if repetition != 1.0:
                seen = torch.tensor(sequence.token_ids, device=row.device).unique()
                scores = row[seen]
                row[seen] = torch.where(scores < 0, scores * repetition, scores / repetition)
            if (sampling.presence_penalty or sampling.frequency_penalty) and sequence.num_generated:
                ids, counts = torch.tensor(sequence.generated, device=row.device).unique(return_counts=True)
                row[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts

    def _choose(self, logits: torch.Tensor, sequences: list[Sequence]) -> list[int]:
        chosen = [0] * len(sequences)
        free: list[int] = []
        bound: list[int] = []
        for i, sequence in enumerate(sequences):
            (free if sequence.trie is None else bound).append(i)
        if free:
            rows = logits if len(free) == len(sequences) else logits[free]
            picked = _pick(rows, None, [sequences[i] for i in free])
            for i, token_id in zip(free, picked, strict=True):
                chosen[i] = token_id
        if bound:
            scores, ids = _bound_scores(logits, bound, sequences)
            for i, token_id in zip(bound, _pick(scores, ids, [sequences[i] for i in bound]), strict=True):
                chosen[i] = token_id
        return chosen


def _bound_scores(
    logits: torch.Tensor, rows: list[int], sequences: list[Sequence]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and ids [n, widest] of the allowed ids of each row; what is padded scores -inf."""
    bound = [sequences[i] for i in rows]
    lists = [s.trie.allowed(s.generated, s.request.stop_ids) for s in bound if s.trie is not None]
    ids = torch.zeros((len(rows), max(map(len, lists))), dtype=torch.long)
    real = torch.zeros_like(ids, dtype=torch.bool)
    for i, found in enumerate(lists):
        ids[i, : len(found)] = torch.tensor(found)
        real[i, : len(found)] = True
    ids, real = ids.to(logits.device), real.to(logits.device)
    scores = logits[rows].gather(1, ids).masked_fill(~real, _NEG)
    return scores, ids


def _pick(scores: torch.Tensor, ids: torch.Tensor | None, sequences: list[Sequence]) -> list[int]:
    """Column (or, with ids, token) of each row: argmax where greedy, else drawn."""
    columns = scores.argmax(1)
    drawn = [i for i, s in enumerate(sequences) if not s.request.sampling.is_greedy]
    for start in range(0, len(drawn), _DRAW_ROWS):
        rows = drawn[start : start + _DRAW_ROWS]
        columns[rows] = _draw(scores[rows], None if ids is None else ids[rows], [sequences[i] for i in rows])
    picked: list[int] = (columns if ids is None else ids.gather(1, columns[:, None])[:, 0]).tolist()
    return picked


def _draw(scores: torch.Tensor, ids: torch.Tensor | None, sequences: list[Sequence]) -> torch.Tensor:
    """Columns drawn by Gumbel-max: a row's draw depends on nothing but its scores, key and position."""
    asked = [s.request.sampling for s in sequences]
    temperatures = torch.tensor([s.temperature for s in asked], device=scores.device)[:, None]
    scores = (scores - scores.amax(1, keepdim=True)) / temperatures
    _keep_top_k(scores, [s.top_k for s in asked])
    _keep_top_p(scores, [s.top_p for s in asked])
    least = torch.tensor([s.min_p for s in asked], device=scores.device)[:, None]
    scores.masked_fill_(scores < torch.log(least), _NEG)  # the best score is 0: its share is the measure
    keys = np.array([s.request.noise_key & (2**64 - 1) for s in sequences], np.uint64)
    positions = np.array([s.num_generated for s in sequences], np.uint64)
    token_ids = np.arange(scores.shape[1]) if ids is None else ids.cpu().numpy()
    shifted = scores.double() + torch.from_numpy(noise.gumbel(keys, positions, token_ids)).to(scores.device)
    return shifted.argmax(1)


def _keep_top_k(scores: torch.Tensor, top_k: list[int]) -> None:
    for row, k in zip(scores, top_k, strict=True):
        if 0 < k < len(row):
            row.masked_fill_(row < row.topk(k).values[-1], _NEG)


def _keep_top_p(scores: torch.Tensor, top_p: list[float]) -> None:
    for row, p in zip(scores, top_p, strict=True):
        if p < 1.0:
            row.masked_fill_(row < _nucleus_edge(row, p), _NEG)


def _nucleus_edge(row: torch.Tensor, top_p: float) -> torch.Tensor:
    """The score of the last token of the smallest set of best tokens whose share reaches top_p."""
    whole = torch.logsumexp(row, 0)
    for size in (min(_HEAD, len(row)), len(row)):
        best = row.topk(size).values
        before = torch.cumsum(torch.exp(best - whole), 0) - torch.exp(best - whole)
        inside = int((before < top_p).sum())
        if inside < size:
            break
    return best[inside - 1]
