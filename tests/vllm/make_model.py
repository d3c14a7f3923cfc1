"""Writes a tiny Qwen2 with random weights: nonsense answers, but a real model to a real vLLM.

Runs inside the vLLM environment (``python make_model.py FOLDER``). The weights are seeded and the
tokenizer is trained on source text of a pinned package, so every machine makes the same model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 2048
MAX_TOKENS = 4096
END_OF_TEXT, TURN_START, TURN_END = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    text = sorted((Path(transformers.__file__).parent / "generation").glob("*.py"))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train([str(path) for path in text], trainer)
    if bpe.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the text gave {bpe.get_vocab_size()} tokens, not {VOCABULARY}")
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=None,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHATML,
        model_max_length=MAX_TOKENS,
    )


def model(tokens: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=MAX_TOKENS,
            bos_token_id=None,
            eos_token_id=tokens.eos_token_id,
            pad_token_id=tokens.pad_token_id,
            dtype="bfloat16",
        )
    ).to(torch.bfloat16)


def main(folder: str) -> None:
    tokens = tokenizer()
    tokens.save_pretrained(folder)
    model(tokens).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
