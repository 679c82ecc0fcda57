"""Held-out regret: the value that a policy's moves lose on held-out boards.

Q is a move's value in [0, 1], by a deeper search than the reward's. p is a move's probability at temperature 1. Each board has two regrets:

- `regret_sampled`: max Q - sum p Q
- `regret_best`: max Q - Q(most likely move)
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo.board.phases import PHASES
from grpo.dataset.table import BoardArrays
from grpo.match.accuracy import move_quality
from grpo.policy.distribution import MovePolicy, PositionBatch

_BATCH = 512
BLUNDER = 0.10  # Loss of value from which a move is a blunder.


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class HeldoutScores:
    """A policy's scores on N held-out boards at T = 1, [N] each."""

    regret_best: NDArray[np.float64]
    regret_sampled: NDArray[np.float64]
    expected_value: NDArray[np.float64]
    phases: NDArray[np.int64]  # Index into `PHASES`.

    def move_quality(self) -> dict[str, float]:
        top = self.expected_value + self.regret_sampled
        return move_quality(top, top - self.regret_best)


def heldout_metrics(policy: MovePolicy, boards: BoardArrays) -> dict[str, float]:
    """Return means at T = 1, over all boards and by phase, the standard error of `regret_best` (NaN for one board), and `move_quality`.

    `boards.values` must be of depth `evaluation.heldout_depth`.
    """
    top, likeliest, expected, entropy, blunder_mass = _columns(policy, boards)
    columns = {
        "heldout/expected_value": expected,
        "heldout/regret_sampled": top - expected,
        "heldout/regret_best": top - likeliest,
        "heldout/entropy": entropy,
        "heldout/blunder_mass": blunder_mass,
    }
    metrics = {name: column.mean().item() for name, column in columns.items()}
    metrics["heldout/regret_best_stderr"] = ((top - likeliest).std() / len(boards) ** 0.5).item()
    metrics |= move_quality(top.double().numpy(), likeliest.double().numpy())
    phases = torch.from_numpy(boards.phases)
    for name in list(columns)[:-1]:  # `heldout/blunder_mass` is not by phase.
        for index, phase in enumerate(PHASES):
            if (in_phase := phases == index).any():
                metrics[f"{name}/{phase}"] = columns[name][in_phase].mean().item()
    return metrics


def heldout_scores(policy: MovePolicy, boards: BoardArrays) -> HeldoutScores:
    top, likeliest, expected = (column.double().numpy() for column in _columns(policy, boards)[:3])
    return HeldoutScores(regret_best=top - likeliest, regret_sampled=top - expected, expected_value=expected, phases=boards.phases)


@torch.no_grad()
def _columns(policy: MovePolicy, boards: BoardArrays) -> list[Tensor]:
    """Return [N] each: best value, most likely move's value, expected value, entropy in nats, probability of blunders."""
    positions, values = PositionBatch.from_arrays(boards), torch.from_numpy(boards.values)
    parts = []
    for rows in torch.split(torch.arange(len(boards)), _BATCH):
        distribution = policy.distribution(positions.select_rows(rows), temperature=1.0)
        is_legal = distribution.is_legal
        values_BA = values[rows][:, : is_legal.shape[1]].to(is_legal.device)
        top = values_BA.masked_fill(~is_legal, -torch.inf).amax(1)
        likeliest = values_BA.gather(1, distribution.best()[:, None])[:, 0]
        blunder_mass = (distribution.probs * (top[:, None] - values_BA >= BLUNDER) * is_legal).sum(1)
        parts.append(torch.stack([top, likeliest, distribution.expectation(values_BA), distribution.entropy(), blunder_mass]).cpu())
    return list(torch.cat(parts, dim=1))


@torch.no_grad()
def move_probabilities(policy: MovePolicy, boards: BoardArrays) -> NDArray[np.float64]:
    """Return each legal move's probability at T = 1, [N, A], 0 on padding."""
    positions = PositionBatch.from_arrays(boards)
    probabilities = np.zeros(boards.is_legal.shape)
    for rows in torch.split(torch.arange(len(boards)), _BATCH):
        probs = policy.distribution(positions.select_rows(rows), temperature=1.0).probs
        probabilities[rows.numpy(), : probs.shape[1]] = probs.cpu().numpy()
    return probabilities
