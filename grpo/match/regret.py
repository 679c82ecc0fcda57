"""Held-out regret: the value that the policy's moves lose, under a stronger search than the reward's.

It is the cheapest measure of strength: it screens checkpoints, and games decide. The regret of a state is max Q - sum p Q (sampled moves)
or max Q - Q(most likely move). Two policies are compared board by board, because most of the variance lies between boards.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo.board.phases import PHASES
from grpo.dataset.table import BoardArrays
from grpo.policy.distribution import MovePolicy, PositionBatch

_BATCH = 512
BLUNDER = 0.10
"""A move whose value is at least this much below the best is a blunder."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class HeldoutScores:
    """A policy's regret and expected value on each of N held-out boards, at T = 1."""

    regret_best: NDArray[np.float64]
    """[N], best value minus value of the most likely move."""
    regret_sampled: NDArray[np.float64]
    """[N], best value minus expected value."""
    expected_value: NDArray[np.float64]
    """[N]."""
    phases: NDArray[np.int64]
    """[N], index into `PHASES`."""


def heldout_metrics(policy: MovePolicy, boards: BoardArrays) -> dict[str, float]:
    """Return regret, expected value, entropy and blunders at T = 1; `values` must be those of the stronger search."""
    top, best, expected, entropy, blunder_mass = _columns(policy, boards)
    whole = {
        "heldout/expected_value": expected,
        "heldout/regret_sampled": top - expected,
        "heldout/regret_best": top - best,
        "heldout/entropy": entropy,
        "heldout/blunder_mass": blunder_mass,
    }
    phases = torch.from_numpy(boards.phases)
    return {
        **{name: column.mean().item() for name, column in whole.items()},
        "heldout/regret_best_stderr": (whole["heldout/regret_best"].std() / len(boards) ** 0.5).item(),
        **{
            f"{name}/{phase}": whole[name][phases == index].mean().item()
            for name in list(whole)[:-1]
            for index, phase in enumerate(PHASES)
            if (phases == index).any()
        },
    }


def heldout_scores(policy: MovePolicy, boards: BoardArrays) -> HeldoutScores:
    """Return regret and expected value per board; `values` must be those of the stronger search."""
    top, best, expected = (column.double().numpy() for column in _columns(policy, boards)[:3])
    return HeldoutScores(regret_best=top - best, regret_sampled=top - expected, expected_value=expected, phases=boards.phases)


@torch.no_grad()
def _columns(policy: MovePolicy, boards: BoardArrays) -> list[Tensor]:
    """Return of each board, [N]: the best value, that of the likeliest move, the expected one, the entropy, the mass on blunders."""
    positions, values = PositionBatch.from_arrays(boards), torch.from_numpy(boards.values)
    parts = []
    for rows in torch.split(torch.arange(len(boards)), _BATCH):
        distribution = policy.distribution(positions.select_rows(rows), temperature=1.0)
        is_legal = distribution.is_legal
        of_moves = values[rows][:, : is_legal.shape[1]].to(is_legal.device)
        top = of_moves.masked_fill(~is_legal, -torch.inf).amax(1)
        best = of_moves.gather(1, distribution.best()[:, None])[:, 0]
        blunder_mass = (distribution.probs * (top[:, None] - of_moves >= BLUNDER) * is_legal).sum(1)
        parts.append(torch.stack([top, best, distribution.expectation(of_moves), distribution.entropy(), blunder_mass]).cpu())
    return list(torch.cat(parts, dim=1))


@torch.no_grad()
def move_probabilities(policy: MovePolicy, boards: BoardArrays) -> NDArray[np.float64]:
    """Return the probability at T = 1 of each legal move, [N, A], 0 on padding."""
    positions = PositionBatch.from_arrays(boards)
    found = np.zeros(boards.is_legal.shape)
    for rows in torch.split(torch.arange(len(boards)), _BATCH):
        probs = policy.distribution(positions.select_rows(rows), temperature=1.0).probs
        found[rows.numpy(), : probs.shape[1]] = probs.cpu().numpy()
    return found
