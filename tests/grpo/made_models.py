"""Small models of other kinds, as somebody may have them in a folder: made here, for no hub is asked in a test."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXTS = ["P: 8/5k2/3p4/1PpP4/4r3/2N5/QB4K1/8 b KQkq c3 0 40    M: e2e4 a7a8q    E: 0.35 -1.20    B: e2e4+0.001+0+0+"] * 4


def byte_pair_tokenizer(*, pad: str | None = None) -> PreTrainedTokenizerFast:
    """Return a GPT-2-like BPE over bytes, trained on a line of the format; GPT-2's own has no padding token either."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", *([pad] if pad else [])]
    tokenizer.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=320, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>", pad_token=pad)


def gpt2(folder: Path, tokenizer: PreTrainedTokenizerFast | None = None, **changes: Any) -> Path:
    """Save a GPT-2 with GPT-2's own dropout of 0.1, and return its folder."""
    tokenizer = tokenizer or byte_pair_tokenizer()
    config = {
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 256,
        "vocab_size": len(tokenizer),
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    with torch.random.fork_rng():
        torch.manual_seed(3)
        # Wide enough for answers to depend on what is read.
        model = GPT2LMHeadModel(GPT2Config(**{**config, "initializer_range": 0.3, **changes}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def llama(folder: Path, tokenizer: PreTrainedTokenizerFast | None = None) -> Path:
    """Save a Llama, whose positions are rotations and whose output is not tied to its input, and return its folder."""
    tokenizer = tokenizer or byte_pair_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                max_position_embeddings=256,
                initializer_range=0.3,
                attention_dropout=0.1,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
