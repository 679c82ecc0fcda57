"""Positions that count real tokens: without this, a row that is padded on the left is another row.

Prompts of unequal length are padded on the left, so that all answers begin in one column. `generate()` counts positions from the mask; a
plain forward pass, such as the one that scores answers for the loss, counts columns. With absolute positions the two are different models:
for a GPT-2 and a row with 37 pads, sampled and scored log-probabilities were 5 nats apart, while everything that is logged looked healthy.
"""

import inspect
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


def count_positions_by_mask(model: nn.Module) -> RemovableHandle:
    """Make the model's forward pass count the tokens that its attention mask shows, when it is given a mask and no positions.

    Positions that are given, as `generate()` gives them, stay; a model that takes none is left as it is. Installed twice it is the same.
    """
    signature = inspect.signature(model.forward)
    takes_positions = {"position_ids", "attention_mask"} <= signature.parameters.keys()

    def fill(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not takes_positions:
            return None
        given = signature.bind_partial(*args, **kwargs).arguments
        mask = given.get("attention_mask")
        tokens = given.get("input_ids")
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if given.get("position_ids") is not None or tokens is None or not isinstance(mask, torch.Tensor) or mask.dim() != 2:
            return None
        return args, {**kwargs, "position_ids": positions_of(mask)[:, -tokens.shape[1] :]}

    return model.register_forward_pre_hook(fill, with_kwargs=True)


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    """Return how many real tokens stand before each position, [rows, columns] int64; 0 on padding at the left.

    >>> positions_of(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])).tolist()
    [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]
    """
    return (mask.long().cumsum(1) - 1).clamp(min=0)
