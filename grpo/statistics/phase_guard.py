"""Phase guard: blocks a candidate's promotion if its held-out regret has grown in a phase of the game.

Regret is the value that a policy's best move loses on a board. A board's change is the candidate's regret minus the initial policy's (the
policy before GRPO); pairing by board cancels the boards' difficulty. A phase blocks if its mean change is *shown* to exceed the tolerance
(one-sided 2.5 %, Holm over the phases). So noise blocks at most one in forty candidates within the tolerance; a change three standard
errors beyond the tolerance hardly ever passes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Final

from grpo.statistics.intervals import LEVEL, Estimate, holm, normal_interval

FEWEST_BOARDS: Final = 30  # A phase with fewer boards has no reliable interval and cannot block.


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseChange:
    """Change of held-out regret in one phase; above 0 is worse than the initial policy."""

    phase: str
    change: Estimate  # Mean over the boards, in win probability.
    num_boards: int
    adjusted_p: float
    """One-sided p-value of "the change is at most the tolerance", Holm-adjusted over the phases; 1 with too few boards."""
    blocks: bool


def phase_changes(differences: Mapping[str, Sequence[float]], *, tolerance: float) -> tuple[PhaseChange, ...]:
    """Return each phase's change, and whether the phase blocks promotion.

    Args:
        differences: Phase -> change of each board; at least two boards.
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
    if error == 0:  # All boards changed by the same amount: no noise.
        return float(mean <= tolerance)
    return NormalDist().cdf((tolerance - mean) / error)
