"""Small real tokenizers, trained on a few sentences and saved as model folders."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = [
    "The product is great and I would buy it again.",
    "Something other than great: it broke after two days, naïve as I was.",
    "Ein schönes Gerät, aber zu teuer. 日本語のレビュー 😀😀 def f(x): return x + 1",
    "good bad good bad great other positive negative neutral",
] * 4

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level(folder: Path, *, chat_template: str | None = CHATML) -> Path:
    """A byte-level BPE, as GPT-2, Llama 3 and Qwen have it: any bytes can be written; begins texts with nothing."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return _save(tokenizer, folder, chat_template=chat_template, eos_token="<|im_end|>", eos_token_id=[1, 2])


def byte_fallback(folder: Path, *, chat_template: str | None = None) -> Path:
    """A SentencePiece-like BPE, as Llama 2, Mistral and Gemma have it: spaces are ``▁``, unknown characters are bytes; begins
    texts with ``<s>``."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([sentence for sentence in SENTENCES if sentence.isascii()], trainer)
    plain = json.loads(tokenizer.to_str())
    plain["added_tokens"] = plain["added_tokens"][:3]  # the bytes are ordinary pieces
    tokenizer = Tokenizer.from_str(json.dumps(plain))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return _save(tokenizer, folder, chat_template=chat_template, bos_token="<s>", eos_token="</s>", eos_token_id=2)


def _save(
    tokenizer: Tokenizer, folder: Path, *, chat_template: str | None, eos_token_id: object, **special: str
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": chat_template, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos_token_id}), "utf-8")
    return folder
