"""Supervised training by a validation loss, for every kind of policy: the network ends with the best weights of all looks."""

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
    """Yield at each look the step, the mean training loss since the last look, and the metrics of the validation.

    Args:
        network: ends with the weights of the look with the lowest validation loss; of equal losses, the first.
        optimizer: of its weights.
        config: number of steps, and of steps between two looks.
        rate: step, from 1 on -> learning rate.
        loss: step, from 1 on -> loss of the step's batch.
        validate: returns the validation loss of the network as it is now, and its metrics.

    Raises NonFiniteError when a loss is not finite.
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
        found, metrics = validate()
        yield step, sum(losses) / len(losses), metrics
        losses.clear()
        if _finite(found, "validation loss", step) < lowest:
            lowest, best_weights = found, copy.deepcopy(network.state_dict())
    network.load_state_dict(best_weights)


def _finite(loss: float, name: str, step: int) -> float:
    if not math.isfinite(loss):
        raise NonFiniteError(
            f"pretraining step {step}: the {name} is {loss}; lower pretrain.learning_rate, or give a model whose weights are finite"
        )
    return loss
