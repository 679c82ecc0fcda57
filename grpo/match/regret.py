"""Held-out regret: the value that the policy's moves lose, under a stronger search than the reward's.

It is the cheapest measure of strength: it screens checkpoints, and games decide. The regret of a state is max Q - sum p Q (sampled moves)
or max Q - Q(most likely move). Two policies are compared board by board, because most of the variance lies between boards.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo.board.phases import PHASES
from grpo.dataset.table import BoardArrays
from grpo.policy.distribution import MoveDistribution, MovePolicy, PositionBatch

_BATCH = 512
BLUNDER = 0.10
"""A move whose value is at least this much below the best is a blunder."""


@torch.no_grad()
def heldout_metrics(policy: MovePolicy, boards: BoardArrays) -> dict[str, float]:
    """Return regret, expected value, entropy and blunders at T = 1; `values` must be those of the stronger search."""
    columns: dict[str, list[Tensor]] = {}
    for distribution, of_moves in _distributions(policy, boards):
        probs, is_legal = distribution.probs, distribution.is_legal
        top = of_moves.masked_fill(~is_legal, -torch.inf).amax(1)
        expected = distribution.expectation(of_moves)
        found = {
            "heldout/expected_value": expected,
            "heldout/regret_sampled": top - expected,
            "heldout/regret_best": top - of_moves.gather(1, distribution.best()[:, None])[:, 0],
            "heldout/entropy": distribution.entropy(),
            "heldout/blunder_mass": (probs * (top[:, None] - of_moves >= BLUNDER) * is_legal).sum(1),
        }
        for name, column in found.items():
            columns.setdefault(name, []).append(column.cpu())
    whole = {name: torch.cat(parts) for name, parts in columns.items()}
    phases = torch.from_numpy(boards.phases)
    return {
        **{name: column.mean().item() for name, column in whole.items()},
        "heldout/regret_best_stderr": (whole["heldout/regret_best"].std() / len(boards) ** 0.5).item(),
        **{
            f"{name}/{phase}": whole[name][phases == index].mean().item()
            for name in _BY_PHASE
            for index, phase in enumerate(PHASES)
            if (phases == index).any()
        },
    }


_BY_PHASE = ("heldout/expected_value", "heldout/regret_sampled", "heldout/regret_best", "heldout/entropy")


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


@torch.no_grad()
def heldout_scores(policy: MovePolicy, boards: BoardArrays) -> HeldoutScores:
    """Return regret and expected value per board; `values` must be those of the stronger search."""
    best, expected, tops = [], [], []
    for distribution, of_moves in _distributions(policy, boards):
        tops.append(of_moves.masked_fill(~distribution.is_legal, -torch.inf).max(1).values.cpu())
        best.append(of_moves.gather(1, distribution.best()[:, None])[:, 0].cpu())
        expected.append(distribution.expectation(of_moves).cpu())
    top, of_best, mean = (torch.cat(parts).double().numpy() for parts in (tops, best, expected))
    return HeldoutScores(regret_best=top - of_best, regret_sampled=top - mean, expected_value=mean, phases=boards.phases)


def _distributions(policy: MovePolicy, boards: BoardArrays) -> Iterator[tuple[MoveDistribution, Tensor]]:
    """Yield the policy's distribution at T = 1 and the moves' values, batch by batch, on the policy's device."""
    positions, values = PositionBatch.from_arrays(boards), torch.from_numpy(boards.values)
    for rows in torch.split(torch.arange(len(boards)), _BATCH):
        distribution = policy.distribution(positions.select_rows(rows), temperature=1.0)
        yield distribution, values[rows][:, : distribution.is_legal.shape[1]].to(distribution.is_legal.device)
