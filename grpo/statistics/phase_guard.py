"""Phase guard: blocks promotion of a candidate whose held-out regret has grown in one phase of the game.

The measure is held-out regret per board, candidate minus initial policy; pairing by board cancels the boards' difficulty. A phase blocks if
its regret is *shown* to have grown by more than the tolerance (one-sided 2.5 %, Holm over the phases). At most one in forty candidates
within the tolerance is therefore blocked by noise, and a candidate that exceeds it by three standard errors is nearly always blocked.
A point estimate alone would block good candidates by chance, and requiring proof of *no* regression would block every candidate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Final

from grpo.statistics.intervals import LEVEL, Estimate, holm, normal_interval

FEWEST_BOARDS: Final = 30
"""Fewest boards for a reliable normal interval; a phase with fewer is reported but cannot block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseChange:
    """The change of held-out regret in one phase; above 0 is worse than the initial policy."""

    phase: str
    change: Estimate
    """Mean difference with its 95 % interval."""
    num_boards: int
    adjusted_p: float
    """One-sided p-value of "no worse than the tolerance", Holm-adjusted over the phases; 1 for too few boards."""
    blocks: bool


def phase_changes(differences: Mapping[str, Sequence[float]], *, tolerance: float) -> tuple[PhaseChange, ...]:
    """Return the change of each phase, and whether it blocks promotion.

    Args:
        differences: By phase, each board's regret of the candidate minus that of the initial policy; at least two boards.
        tolerance: Allowed growth of mean regret, in win probability.
    """
    means = {phase: (fmean(values), stdev(values) / math.sqrt(len(values))) for phase, values in differences.items()}
    adjusted = holm([_p_value(*means[phase], tolerance) if len(differences[phase]) >= FEWEST_BOARDS else 1.0 for phase in means])
    changes = []
    for (phase, (mean, error)), p in zip(means.items(), adjusted, strict=True):
        change, num_boards = normal_interval(mean, error), len(differences[phase])
        changes.append(PhaseChange(phase=phase, change=change, num_boards=num_boards, adjusted_p=p, blocks=p <= LEVEL))
    return tuple(changes)


def _p_value(mean: float, error: float, tolerance: float) -> float:
    if error == 0:  # All boards changed by the same amount, so there is no noise.
        return float(mean <= tolerance)
    return NormalDist().cdf((tolerance - mean) / error)
