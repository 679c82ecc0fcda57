"""A policy may not pay for its strength with one phase of the game.

The measure is held-out regret, board by board, candidate less initial policy: the boards are the same, so what is hard about them cancels.
The rule: a phase blocks when its regret is *shown* to have grown by more than the tolerance, one-sided 2.5 % by Holm over the phases. So
at most one candidate in forty that is within the tolerance everywhere is blocked by noise, however few the boards; and one that is
worse than the tolerance by three standard errors is blocked nearly always. A point estimate beyond the tolerance would block good
candidates by the luck of some boards; asking for proof of *no* regression would promote nobody with the boards at hand.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Final

from grpo.statistics.intervals import LEVEL, Z95, Estimate, holm

FEWEST_BOARDS: Final = 30
"""Below this the normal interval is not to be trusted; such a phase is reported and cannot block."""
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseChange:
    """How held-out regret changed in one phase; above 0 is worse than the initial policy."""

    phase: str
    change: Estimate
    """Mean difference with its 95 % interval."""
    num_boards: int
    adjusted_p: float
    """One-sided, against "no worse than the tolerance", by Holm over the phases; 1 where there are too few boards."""
    blocks: bool


def phase_changes(differences: Mapping[str, Sequence[float]], *, tolerance: float) -> tuple[PhaseChange, ...]:
    """Return how each phase changed, and whether it blocks promotion.

    Args:
        differences: by phase, each board's regret under the candidate less that under the initial policy.
        tolerance: growth of mean regret, in win probability, that is put up with.

    Raises ValueError when a phase has fewer than two boards: leave it out, for nothing is known of it.
    """
    for phase, values in differences.items():
        if len(values) < 2:
            raise ValueError(f"{len(values)} held-out boards of phase {phase} give no spread; compare phases of at least two boards")
    adjusted = holm([_p_value(values, tolerance) for values in differences.values()])
    return tuple(
        PhaseChange(
            phase=phase,
            change=_mean_with_interval(values),
            num_boards=len(values),
            adjusted_p=p,
            blocks=p <= LEVEL,
        )
        for (phase, values), p in zip(differences.items(), adjusted, strict=True)
    )


def _p_value(differences: Sequence[float], tolerance: float) -> float:
    excess, error = fmean(differences) - tolerance, _standard_error(differences)
    if len(differences) < FEWEST_BOARDS:
        return 1.0
    if error == 0:  # All boards changed by the same: there is no noise to hide in.
        return 0.0 if excess > 0 else 1.0
    return _NORMAL.cdf(-excess / error)


def _mean_with_interval(differences: Sequence[float]) -> Estimate:
    mean, half_width = fmean(differences), Z95 * _standard_error(differences)
    return Estimate(value=mean, low=mean - half_width, high=mean + half_width)


def _standard_error(differences: Sequence[float]) -> float:
    return stdev(differences) / math.sqrt(len(differences))
