"""The small GPT-2 begins with squares and pieces that are told apart."""

import doctest

import torch

from grpo.language.model import left_padding, small_gpt2
from grpo.language.model.small_gpt2 import new_small_model
from grpo.language.text.tokenizer import chess_tokenizer
from grpo.settings.language import SmallModelConfig

TOKENIZER = chess_tokenizer()


def embedding(model, token: str) -> torch.Tensor:
    vector = model.transformer.wte.weight[TOKENIZER.get_vocab()[token]].detach()
    return vector / vector.norm()


def test_the_examples_of_the_documentation_hold() -> None:
    for module in (small_gpt2, left_padding):
        result = doctest.testmod(module)
        assert result.attempted > 0
        assert result.failed == 0


def test_men_on_one_square_are_alike_and_squares_are_not() -> None:
    model = new_small_model(SmallModelConfig(width=96, num_layers=1), TOKENIZER, seed=3)
    knight, rook, elsewhere = (embedding(model, token) for token in ("N@f3", "R@f3", "N@a7"))
    assert knight @ rook > 0.3
    assert knight @ elsewhere > 0.3
    assert rook @ elsewhere < 0.2
    assert embedding(model, ".@c5") @ embedding(model, "Q@h1") < 0.2


def test_it_is_as_wide_and_deep_as_it_is_asked_to_be() -> None:
    for width, layers in ((16, 1), (128, 3)):
        model = new_small_model(SmallModelConfig(width=width, num_layers=layers, max_tokens=200), TOKENIZER, seed=0)
        assert model.config.n_embd == width
        assert len(model.transformer.h) == layers
        assert model.config.max_position_embeddings == 200
        assert model.config.vocab_size == len(TOKENIZER)
        assert bool(torch.cat([weights.flatten() for weights in model.parameters()]).isfinite().all())
