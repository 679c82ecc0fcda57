"""Position ids from the attention mask, so that left padding does not change a model's output.

Prompts of different length are padded on the left, so that all answers begin in the same column. `generate()` derives positions from the
mask, but a plain forward pass, such as the one that scores answers for the loss, counts columns. With absolute positions these are two
different models: for a GPT-2 and a row with 37 pads, sampled and scored log-probabilities differed by 5 nats, while all logged metrics
looked healthy.
"""

import inspect
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


def count_positions_by_mask(model: nn.Module) -> RemovableHandle:
    """Install a hook that computes position ids from the attention mask, if a forward pass gets a mask but no positions.

    Given positions, as from `generate()`, are not changed, and a model without position ids is not affected. Installing it twice is
    harmless.
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
    """Return the number of real tokens before each column, [rows, columns] int64; 0 on left padding.

    >>> positions_of(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])).tolist()
    [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]
    """
    return (mask.long().cumsum(1) - 1).clamp(min=0)
