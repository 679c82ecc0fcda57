"""Small models of other kinds in a folder, made here because tests ask no hub."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

TEXTS = ["P: 8/5k2/3p4/1PpP4/4r3/2N5/QB4K1/8 b KQkq c3 0 40    M: e2e4 a7a8q    E: 0.35 -1.20    B: e2e4+0.001+0+0+"] * 4

NO_DROPOUT = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)
"""Arguments of a GPT-2 without dropout."""


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


def gpt2_network(vocab_size: int, **changes: Any) -> GPT2LMHeadModel:
    """Return a small GPT-2 with weights so wide that answers depend on what is read, and with GPT-2's own dropout of 0.1."""
    config = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256, "vocab_size": vocab_size, "initializer_range": 0.3}
    return GPT2LMHeadModel(GPT2Config(**{**config, "bos_token_id": 0, "eos_token_id": 0, **changes}))


def llama_network(vocab_size: int, **changes: Any) -> LlamaForCausalLM:
    """Return a small Llama, whose positions are rotations and whose output is not tied to its input."""
    config = {
        "vocab_size": vocab_size,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return LlamaForCausalLM(LlamaConfig(**{**config, **changes}))


def gpt2(folder: Path, tokenizer: PreTrainedTokenizerFast | None = None, **changes: Any) -> Path:
    return _saved(folder, gpt2_network, tokenizer, **changes)


def llama(folder: Path, tokenizer: PreTrainedTokenizerFast | None = None) -> Path:
    return _saved(folder, llama_network, tokenizer, attention_dropout=0.1)


def _saved(folder: Path, make: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerFast | None, **changes: Any) -> Path:
    tokenizer = tokenizer or byte_pair_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        make(**{"vocab_size": len(tokenizer), **changes}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
