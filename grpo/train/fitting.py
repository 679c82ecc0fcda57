"""Supervised training that keeps the weights of the lowest validation loss."""

import copy
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError
from grpo.settings.tree import PretrainConfig


def fit(
    network: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    config: PretrainConfig,
    *,
    rate: Callable[[int], float],
    loss: Callable[[int], Tensor],
    validate: Callable[[], tuple[float, dict[str, float]]],
) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Train the network in place. At each validation, yield the step, the mean training loss since the last validation, and the metrics.

    When the iterator ends, the network gets the weights of the lowest validation loss. Steps count from 1.
    Raises NonFiniteError if a loss is not finite.

    - `rate`: step -> learning rate
    - `loss`: step -> the batch's loss, with a gradient
    - `validate` returns the validation loss and the metrics to yield
    """
    lowest, best_weights = math.inf, copy.deepcopy(network.state_dict())
    losses: list[float] = []
    for step in range(1, config.num_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        batch_loss = loss(step)
        losses.append(_finite(batch_loss.item(), "loss", step))
        optimizer.zero_grad(set_to_none=True)
        batch_loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % config.steps_per_validation and step != config.num_steps:
            continue
        validation_loss, metrics = validate()
        yield step, sum(losses) / len(losses), metrics
        losses.clear()
        if _finite(validation_loss, "validation loss", step) < lowest:
            lowest, best_weights = validation_loss, copy.deepcopy(network.state_dict())
    network.load_state_dict(best_weights)


def _finite(loss: float, name: str, step: int) -> float:
    if not math.isfinite(loss):
        raise NonFiniteError(
            f"pretraining step {step}: the {name} is {loss}; lower pretrain.learning_rate, or start from a model whose weights are finite"
        )
    return loss
