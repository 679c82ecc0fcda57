"""The built-in model `small`: a GPT-2 with random initial weights, which needs no download."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import torch

from grpo.base.seeding import named_seed
from grpo.settings.language import LanguageConfig

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel, PreTrainedTokenizerBase

# Initial weights have the standard deviation _SPREAD / sqrt(width). With GPT-2's constant 0.02, a model of width 64 learns late to copy
# squares.
_SPREAD: Final = 0.6
_NUM_HEADS: Final = 4
_MAX_TOKENS: Final = 256  # Context: prompt and answer together.
_FEATURE_SIZE: Final = 26.0  # A feature's vector has the length _FEATURE_SIZE / sqrt(width).
_MOVE_WEIGHT: Final = 0.1  # Factor of a square's vector in a move's token.
_GAIN: Final = 4.0  # Factor of the initial logits with `lists_moves`.


def new_small_model(config: LanguageConfig, tokenizer: "PreTrainedTokenizerBase", *, seed: int) -> "GPT2LMHeadModel":
    """Settings, tokenizer and seed determine the weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    described = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=_MAX_TOKENS,
        n_embd=config.small_width,
        n_layer=config.small_num_layers,
        n_head=_NUM_HEADS,
        initializer_range=_SPREAD / config.small_width**0.5,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(named_seed(seed, "language model"))
        model = GPT2LMHeadModel(described)
        _add_features(model.transformer.wte.weight, tokenizer.get_vocab())
        if config.lists_moves:
            # Larger logits sharpen distributions. Such an answer has 70 tokens, so even rare wrong tokens spoil many answers.
            model.transformer.ln_f.weight.data *= _GAIN
    return model


def _add_features(embeddings: torch.Tensor, vocabulary: Mapping[str, int]) -> None:
    """Add a random vector of each feature to the embeddings of all tokens with the feature.

    So what the model learns about one piece on a square helps with all pieces on the square.
    """
    parts = {token: tuple(_parts(token)) for token in vocabulary}
    names = list(dict.fromkeys(name for features in parts.values() for name, _ in features))
    width = embeddings.shape[1]
    # The vocabulary's order decides which vector a feature gets, so another order gives another model.
    blocks = [torch.linalg.qr(torch.randn(width, width))[0] for _ in range(0, len(names), width)]
    directions = dict(zip(names, torch.cat(blocks) * _FEATURE_SIZE / width**0.5, strict=False))
    for token, features in parts.items():
        for name, weight in features:
            embeddings.data[vocabulary[token]] += weight * directions[name]


def _parts(token: str) -> Iterator[tuple[str, float]]:
    """Yield a token's features with the weights of their vectors.

    >>> list(_parts("n@f3"))
    [('n', 1.0), ('f3', 1.0)]
    >>> list(_parts(" e2e4"))
    [('from e2', 0.1), ('to e4', 0.1)]
    """
    if match := re.fullmatch(r"(.)@([a-h][1-8])", token):
        yield from ((feature, 1.0) for feature in match.groups())
    elif match := re.fullmatch(r" ?([a-h][1-8])([a-h][1-8])[nbrq]?", token):
        yield f"from {match[1]}", _MOVE_WEIGHT
        yield f"to {match[2]}", _MOVE_WEIGHT
