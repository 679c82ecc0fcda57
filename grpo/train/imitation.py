"""Imitation of the moves played; of all looks at the validation loss, the best weights are kept.

It must end with a strong policy, not with a weak one on which GRPO would shine.
"""

import copy
import itertools
import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import torch_stream
from grpo.dataset.table import LabelArrays
from grpo.diagnosis.records import Record
from grpo.policy.distribution import PositionBatch
from grpo.policy.policy import NetworkPolicy
from grpo.settings.tree import PretrainConfig
from grpo.train.states import reflected

WEIGHT_DECAY: Final = 0.05
_VALIDATION_BATCH: Final = 512


def imitate(policy: NetworkPolicy, train: LabelArrays, validation: LabelArrays, config: PretrainConfig, *, seed: int) -> Iterator[Record]:
    """Yield a record at each look at the validation loss; the policy ends with the best weights of all looks.

    The learning rate falls linearly to 0. Raises NonFiniteError when the validation loss is not finite.
    """
    positions, looked_at = (PositionBatch.from_arrays(boards).with_features() for boards in (train, validation))
    played = torch.from_numpy(train.played)
    optimiser = torch.optim.AdamW(policy.network.parameters(), lr=config.learning_rate, weight_decay=WEIGHT_DECAY)
    best, best_weights = math.inf, policy.network.state_dict()
    losses: list[float] = []
    for step, rows in zip(range(1, config.num_steps + 1), _batches(len(train), config.batch_size, seed=seed), strict=False):
        batch = positions.select_rows(rows)
        batch = reflected(batch, torch.rand(len(rows), generator=torch_stream(seed, "imitation", "reflection", step - 1)) < 0.5)
        rate = config.learning_rate * (1 - (step - 1) / config.num_steps)
        for group in optimiser.param_groups:
            group["lr"] = rate
        batch_loss = _loss(policy, batch, played[rows])
        optimiser.zero_grad(set_to_none=True)
        batch_loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(batch_loss.item())
        if step % config.steps_per_validation and step != config.num_steps:
            continue
        measured = validation_metrics(policy, looked_at, validation.played)
        yield Record(step, {"imitation/train_loss": sum(losses) / len(losses), "imitation/learning_rate": rate, **measured})
        losses.clear()
        loss = measured["imitation/validation_loss"]
        if not math.isfinite(loss):
            raise NonFiniteError(f"imitation step {step}: the validation loss is {loss}; lower pretrain.learning_rate")
        if loss < best:
            best, best_weights = loss, copy.deepcopy(policy.network.state_dict())
    policy.network.load_state_dict(best_weights)


@torch.no_grad()
def validation_metrics(policy: NetworkPolicy, positions: PositionBatch, played_B: NDArray[np.int64]) -> dict[str, float]:
    """Return loss, top-1, top-5 and entropy of the policy on these positions, at T = 1; `played_B` are the columns of the moves played."""
    losses, ranks, entropies = [], [], []
    for rows in torch.split(torch.arange(len(positions)), _VALIDATION_BATCH):
        distribution = policy.distribution(positions.select_rows(rows), temperature=1.0)
        log_probs = distribution.log_probs.masked_fill(~distribution.is_legal, -torch.inf)
        of_played = log_probs.gather(1, torch.from_numpy(played_B)[rows, None].to(log_probs.device))
        losses.append(-of_played[:, 0])
        ranks.append((log_probs >= of_played).sum(1) - 1)  # Ties count against the move played.
        entropies.append(distribution.entropy())
    loss, rank = torch.cat(losses).mean(), torch.cat(ranks)
    return {
        "imitation/validation_loss": loss.item(),
        "imitation/top1": (rank < 1).float().mean().item(),
        "imitation/top5": (rank < 5).float().mean().item(),
        "imitation/entropy": torch.cat(entropies).mean().item(),
    }


def _loss(policy: NetworkPolicy, positions: PositionBatch, played: Tensor) -> Tensor:
    distribution = policy.distribution(positions, temperature=1.0)
    return -distribution.log_prob(played[:, None].to(distribution.log_probs.device)).mean()


def _batches(num_boards: int, size: int, *, seed: int) -> Iterator[Tensor]:
    """Yield the rows of a batch after the other for ever; each epoch has an order of its own."""
    for epoch in itertools.count():
        order = torch.randperm(num_boards, generator=torch_stream(seed, "imitation", epoch))
        yield from torch.split(order[: max(1, num_boards // size) * size], size)
