"""What a model's attention layers are, learnt from one tiny forward: no list of architectures, no guess from a config.

A model whose layers do not all come through transformers' AttentionInterface (bloom, mpt, gpt_neo), or that has layers of
another kind (mamba, lfm2's convolutions), shows itself here.
"""

from __future__ import annotations

import torch
from transformers import PretrainedConfig, PreTrainedModel

from sparkinfer.engine.attention import hook
from sparkinfer.engine.attention.base import AttentionCall, LayerShape
from sparkinfer.errors import UnsupportedModel


class _Recorder:
    """An attention backend that answers zeros and remembers what it was asked."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerShape] = {}
        self.calls = 0

    def forward(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        self.calls += 1
        self.layers[layer] = LayerShape(
            kv_heads=key.shape[1], k_dim=key.shape[2], v_dim=value.shape[2], window=call.window
        )
        return value.new_zeros(query.shape[0], query.shape[1], value.shape[2])


@torch.inference_mode()
def attention_layers(model: PreTrainedModel) -> list[LayerShape]:
    """One shape per attention layer, in the order of layer indices. Leaves the model on the packed implementation.

    Raises:
        UnsupportedModel: some layer cannot be served by the packed path; the message says which way.
    """
    kind = model.config.model_type
    hook.register()
    recorder = _Recorder()
    try:
        model.set_attn_implementation(hook.IMPLEMENTATION)
        ids = torch.zeros((1, 2), dtype=torch.long, device=model.device)
        with hook.backend(recorder):
            model(
                input_ids=ids,
                position_ids=torch.arange(2, device=model.device)[None],
                use_cache=False,
                logits_to_keep=torch.ones(1, dtype=torch.long, device=model.device),
            )
    except UnsupportedModel:
        raise
    except Exception as error:  # any way of not fitting the call means the same: not on the packed path
        raise UnsupportedModel(f"{kind} cannot run packed: {type(error).__name__}: {error}") from error
    expected = getattr(text_config(model.config), "num_hidden_layers", None)
    if not recorder.calls:
        raise UnsupportedModel(
            f"{kind} does not call transformers' attention interface, so its prompts cannot be packed."
        )
    if sorted(recorder.layers) != list(range(recorder.calls)) or (expected is not None and recorder.calls != expected):
        raise UnsupportedModel(
            f"{kind} sends {recorder.calls} of {expected} layers through attention; the others look across packed prompts."
        )
    return [recorder.layers[index] for index in range(recorder.calls)]


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """The part of a (perhaps multimodal) configuration that describes the language model."""
    return config.get_text_config(decoder=True)
