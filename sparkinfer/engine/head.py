"""The output layer on the CPU, with its weights in the order that oneDNN multiplies them in.

The product of a step's last tokens with the vocabulary is a fifth of a small model's arithmetic in a decode step, and with the
weights as they lie most of its time goes into bringing them into that order, anew in every step. It is done once here, where
a trial shows that it pays; it costs a second copy of these weights, which a tied embedding still needs as they lie.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers import PreTrainedModel

from sparkinfer.model.trial import best_of as _best_of

_TRIAL_TOKENS = 16
_TOLERANCE = 1e-4  # of the largest logit: another order of the same sums


@torch.inference_mode()
def order_head(model: PreTrainedModel, *, free_bytes: int) -> int:
    """Let the output layer work on reordered weights, for float32 on the CPU where it is faster and right.

    Args:
        model: in eval mode; changed in place.
        free_bytes: memory that is left; nothing is done where a copy would take more than a quarter of it.

    Returns:
        Bytes of the copy; 0 where nothing was done.
    """
    head = model.get_output_embeddings()
    is_plain = type(head) is nn.Linear and "forward" not in vars(head)
    if not is_plain or head.weight.device.type != "cpu" or head.weight.dtype is not torch.float32:
        return 0
    size = head.weight.numel() * head.weight.element_size()
    if 4 * size > free_bytes or not torch.backends.mkldnn.is_available():
        return 0
    try:
        ordered = _ordered(head)
        pays = _is_right_and_faster(head, ordered)
    except (RuntimeError, AttributeError):  # a build of torch without these operators
        return 0
    if not pays:
        return 0
    head.forward = ordered
    return size


def _ordered(head: nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    weight = torch.ops.mkldnn._reorder_linear_weight(head.weight.detach(), None)
    bias = None if head.bias is None else head.bias.detach()

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(hidden, weight, bias, "none", [], "")
        return out

    return forward


def _is_right_and_faster(head: nn.Linear, ordered: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    tokens = torch.randn((1, _TRIAL_TOKENS, head.in_features), generator=torch.Generator().manual_seed(1))
    want, got = head(tokens), ordered(tokens)
    if float((want - got).abs().max()) > _TOLERANCE * float(want.abs().max()):
        return False
    return _best_of(ordered, tokens) < _best_of(head, tokens)
