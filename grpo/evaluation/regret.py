"""Held-out regret: what the policy's moves give away, under a stronger search than the reward's.

The cheapest signal of strength; it screens checkpoints, games decide. Regret of a state: max Q - sum p Q (moves sampled), and
max Q - Q(likeliest move). Two policies are compared board by board, for most of the spread lies between boards.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo.base.files import sha256_text
from grpo.board.actions import NUM_ACTIONS
from grpo.board.phases import PHASES, Phase
from grpo.dataset.table import BoardArrays
from grpo.policy.distribution import MoveDistribution, Policy, PositionBatch
from grpo.statistics.intervals import Z95
from grpo.statistics.rank_correlation import rank_correlations

_BATCH = 512
_RANKED_AT_ONCE = 64  # Boards whose moves are compared with each other: A x A numbers each.
BLUNDER = 0.10
"""A move that is worth at least this much less than the best is a blunder."""
_PAD: Final = 0.5  # A draw given away for a loss, on one board by the one policy and on one by the other.

Column = Literal["regret_best", "regret_sampled", "expected_value"]


@torch.no_grad()
def heldout_metrics(policy: Policy, boards: BoardArrays) -> dict[str, float]:
    """Return regret, expected value, entropy and agreement with the engine at T = 1; `values` must be those of the stronger search."""
    columns: dict[str, list[Tensor]] = {}
    for distribution, of_moves in _distributions(policy, boards):
        probs, is_legal = distribution.probs, distribution.is_legal
        top, best = of_moves.masked_fill(~is_legal, -torch.inf).max(1)
        expected = distribution.expectation(of_moves)
        spearman, kendall = _agreement(distribution, of_moves)
        found = {
            "heldout/expected_value": expected,
            "heldout/regret_sampled": top - expected,
            "heldout/regret_best": top - of_moves.gather(1, distribution.best()[:, None])[:, 0],
            "heldout/entropy": distribution.entropy(),
            "heldout/best_move_probability": probs.gather(1, best[:, None])[:, 0],
            "heldout/blunder_mass": (probs * (top[:, None] - of_moves >= BLUNDER) * is_legal).sum(1),
            "heldout/spearman": spearman,
            "heldout/kendall": kendall,
        }
        for name, column in found.items():
            columns.setdefault(name, []).append(column.cpu())
    whole = {name: torch.cat(parts) for name, parts in columns.items()}
    ranked = {name: whole.pop(name) for name in ("heldout/spearman", "heldout/kendall")}
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
        # Boards without a ranking say nothing about agreement.
        **{name: column.nanmean().item() for name, column in ranked.items() if not column.isnan().all()},
    }


_BY_PHASE = ("heldout/expected_value", "heldout/regret_sampled", "heldout/regret_best", "heldout/entropy")


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class HeldoutScores:
    """What a policy makes of each of N held-out boards, at T = 1."""

    regret_best: NDArray[np.float64]
    """[N], best value less value of the likeliest move."""
    regret_sampled: NDArray[np.float64]
    """[N], best value less expected value."""
    expected_value: NDArray[np.float64]
    """[N]."""
    phases: NDArray[np.int64]
    """[N], index into `PHASES`."""
    boards: str
    """A hash of the boards and their values: only scores of the same ones can be paired."""

    def __len__(self) -> int:
        return len(self.phases)


@torch.no_grad()
def heldout_scores(policy: Policy, boards: BoardArrays) -> HeldoutScores:
    """Return regret and expected value board by board; `values` must be those of the stronger search."""
    best, expected, tops = [], [], []
    for distribution, of_moves in _distributions(policy, boards):
        tops.append(of_moves.masked_fill(~distribution.is_legal, -torch.inf).max(1).values.cpu())
        best.append(of_moves.gather(1, distribution.best()[:, None])[:, 0].cpu())
        expected.append(distribution.expectation(of_moves).cpu())
    top, of_best, mean = (torch.cat(parts).double().numpy() for parts in (tops, best, expected))
    marks = "".join(array.tobytes().hex() for array in (boards.encodings, boards.values[boards.is_legal]))
    return HeldoutScores(
        regret_best=top - of_best, regret_sampled=top - mean, expected_value=mean, phases=boards.phases, boards=sha256_text(marks)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanDifference:
    """The mean of one policy's column less another's over the same boards, with its 95 % interval."""

    mean: float
    stderr: float
    low: float
    high: float
    num_boards: int

    def __str__(self) -> str:
        return f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}], {self.num_boards:,} boards"


def paired_difference(
    one: HeldoutScores, other: HeldoutScores, *, column: Column = "regret_best", phase: Phase | None = None
) -> MeanDifference:
    """Return the mean of `one` less `other` over the boards (of a phase), with its standard error and 95 % interval.

    The interval is the normal one, after adding one difference 0.5 above the mean and one 0.5 below it (after Agresti and Coull, The
    American Statistician 52, 1998): what gives half a point away is rare, and a handful of boards, or boards on which both policies play
    alike, must not look certain. 30 boards without a difference give 0 +- 0.043, 600 of them 0 +- 0.0023; where differences have a standard
    deviation of 0.1, an interval of 600 boards becomes 4 % wider by it.

    Raises ValueError when the scores are of different boards, or the phase has none.
    """
    if one.boards != other.boards:
        raise ValueError("the scores are of different boards or values: pair scores of the same dataset's held-out split")
    differences = np.asarray(getattr(one, column) - getattr(other, column))
    if phase is not None:
        differences = differences[one.phases == PHASES.index(phase)]
    if not len(differences):
        raise ValueError(f"no {phase or 'held-out'} boards, no difference: the dataset's held-out split has none")
    mean = float(differences.mean())
    padded = np.append(differences, (mean - _PAD, mean + _PAD))
    stderr = float(padded.std()) / math.sqrt(len(padded))
    return MeanDifference(mean=mean, stderr=stderr, low=mean - Z95 * stderr, high=mean + Z95 * stderr, num_boards=len(differences))


def differences_by_phase(one: HeldoutScores, other: HeldoutScores, *, column: Column = "regret_best") -> dict[Phase, MeanDifference]:
    """Return `paired_difference` of each phase that has boards."""
    present = [phase for index, phase in enumerate(PHASES) if (one.phases == index).any()]
    return {phase: paired_difference(one, other, column=column, phase=phase) for phase in present}


@torch.no_grad()
def illegal_mass(policy: Policy, boards: BoardArrays) -> NDArray[np.float64]:
    """Return the probability, [N], of all illegal moves under the softmax over every action there is, before the mask, at T = 1.

    No game depends on it; it tells how much of the rules the network itself has learned. It takes a forward pass of its own, as long as
    that of `heldout_metrics` (0.28 s for 512 boards of the default network, one thread), hence it is no part of that.
    """
    encodings = torch.from_numpy(boards.encodings)
    action_ids, is_legal = torch.from_numpy(boards.action_ids), torch.from_numpy(boards.is_legal)
    parts = []
    for rows in torch.split(torch.arange(len(boards)), _BATCH):
        shape = (len(rows), NUM_ACTIONS)
        everything = PositionBatch(
            encodings=encodings[rows],
            action_ids=torch.arange(NUM_ACTIONS).expand(shape),
            is_legal=torch.ones(1, 1, dtype=torch.bool).expand(shape),
        )
        probs = policy.distribution(everything, temperature=1.0).probs.double().cpu()
        # Summed over the illegal moves, not 1 less the legal: a small mass would be lost in rounding.
        illegal = torch.ones(shape, dtype=torch.bool)
        row, column = is_legal[rows].nonzero(as_tuple=True)
        illegal[row, action_ids[rows][row, column]] = False
        parts.append((probs * illegal).sum(1))
    return np.asarray(torch.cat(parts).numpy())


def _distributions(policy: Policy, boards: BoardArrays) -> Iterator[tuple[MoveDistribution, Tensor]]:
    """Yield the policy's distribution at T = 1 and the moves' values, batch by batch, on the policy's device."""
    positions, values = PositionBatch.from_arrays(boards), torch.from_numpy(boards.values)
    for rows in torch.split(torch.arange(len(boards)), _BATCH):
        distribution = policy.distribution(positions.select_rows(rows), temperature=1.0)
        yield distribution, values[rows][:, : distribution.is_legal.shape[1]].to(distribution.is_legal.device)


def _agreement(distribution: MoveDistribution, of_moves: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rank correlations between the policy's log-probabilities and the engine's values."""
    pieces = zip(
        *(torch.split(tensor, _RANKED_AT_ONCE) for tensor in (distribution.log_probs, of_moves, distribution.is_legal)), strict=True
    )
    spearman, kendall = zip(*(rank_correlations(*piece) for piece in pieces), strict=True)
    return torch.cat(spearman), torch.cat(kendall)
