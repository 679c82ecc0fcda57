"""The small GPT-2 begins with squares and pieces that are told apart."""

import torch

from grpo.language.model.small_gpt2 import new_small_model
from grpo.language.text.tokenizer import chess_tokenizer
from grpo.settings.language import SmallModelConfig

TOKENIZER = chess_tokenizer()


def embedding(model, token: str) -> torch.Tensor:
    vector = model.transformer.wte.weight[TOKENIZER.get_vocab()[token]].detach()
    return vector / vector.norm()


def test_men_on_one_square_are_alike_and_squares_are_not() -> None:
    model = new_small_model(SmallModelConfig(width=96, num_layers=1), TOKENIZER, seed=3)
    knight, rook, elsewhere = (embedding(model, token) for token in ("N@f3", "R@f3", "N@a7"))
    assert knight @ rook > 0.3
    assert knight @ elsewhere > 0.3
    assert rook @ elsewhere < 0.2
    assert embedding(model, ".@c5") @ embedding(model, "Q@h1") < 0.2
