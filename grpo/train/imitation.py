"""Imitation: pretraining of the chess network on the moves played in games."""

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo.base.seeding import torch_stream
from grpo.dataset.table import LabelArrays
from grpo.metrics.records import Record
from grpo.policy.distribution import PositionBatch
from grpo.policy.policy import NetworkPolicy
from grpo.settings.tree import PretrainConfig
from grpo.train.fitting import fit
from grpo.train.states import reflected

WEIGHT_DECAY: Final = 0.05
_VALIDATION_BATCH: Final = 512


def imitate(policy: NetworkPolicy, train: LabelArrays, validation: LabelArrays, config: PretrainConfig, *, seed: int) -> Iterator[Record]:
    """Train the policy in place, and yield a record at each validation. The learning rate falls linearly toward 0.

    After the last record, the policy gets the weights of the lowest validation loss. Raises NonFiniteError as `fit`.
    """
    positions, validation_positions = (PositionBatch.from_arrays(boards).with_features() for boards in (train, validation))
    played, batches = torch.from_numpy(train.played), _batches(len(train), config.batch_size, seed=seed)
    # Only the last quarter, because replies are slow.
    first_with_replies = config.num_steps - config.num_steps // 4 + 1
    policy.look_ahead(False)

    def rate(step: int) -> float:
        return config.learning_rate * (1 - (step - 1) / config.num_steps)

    def loss(step: int) -> Tensor:
        if step == first_with_replies:
            policy.look_ahead(True)
        rows = next(batches)
        # A mirrored move keeps its index among the board's legal moves, so `played` stays right.
        is_image = torch.rand(len(rows), generator=torch_stream(seed, "imitation", "reflection", step - 1)) < 0.5
        return _loss(policy, reflected(positions.select_rows(rows), is_image), played[rows])

    def validate() -> tuple[float, dict[str, float]]:
        metrics = validation_metrics(policy, validation_positions, validation.played)
        return metrics["imitation/validation_loss"], metrics

    optimizer = torch.optim.AdamW(policy.network.parameters(), lr=config.learning_rate, weight_decay=WEIGHT_DECAY)
    for step, train_loss, metrics in fit(policy.network, optimizer, config, rate=rate, loss=loss, validate=validate):
        yield Record(step, {"imitation/train_loss": train_loss, "imitation/learning_rate": rate(step), **metrics})
    policy.look_ahead(True)


@torch.no_grad()
def validation_metrics(policy: NetworkPolicy, positions: PositionBatch, played_B: NDArray[np.int64]) -> dict[str, float]:
    """Return mean loss and entropy in nats, and the fractions of boards whose played move is the most likely, or among the first five.

    `played_B`: index among the board's legal moves.
    """
    losses, ranks, entropies = [], [], []
    for rows in torch.split(torch.arange(len(positions)), _VALIDATION_BATCH):
        distribution = policy.distribution(positions.select_rows(rows), temperature=1.0)
        log_probs = distribution.log_probs.masked_fill(~distribution.is_legal, -torch.inf)
        played_B1 = log_probs.gather(1, torch.from_numpy(played_B)[rows, None].to(log_probs.device))
        losses.append(-played_B1[:, 0])
        ranks.append((log_probs >= played_B1).sum(1) - 1)  # The played move ranks last among equally likely moves.
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
    """Yield batches of row indices without end. An epoch's incomplete last batch is dropped, unless it is the only one."""
    for epoch in itertools.count():
        order = torch.randperm(num_boards, generator=torch_stream(seed, "imitation", epoch))
        yield from torch.split(order[: max(1, num_boards // size) * size], size)
