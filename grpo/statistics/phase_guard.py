"""Phase guard: blocks a candidate's promotion if its held-out regret has grown in a phase of the game.

Regret is the value of a board's best move minus the value of a policy's most likely move, in [0, 1]. A board's change is the candidate's
regret minus the initial policy's (before GRPO). A phase blocks if a test shows that its mean change exceeds the tolerance (one-sided
2.5 %, Holm-adjusted over the phases).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Final

from grpo.statistics.intervals import LEVEL, Estimate, holm, normal_interval

FEWEST_BOARDS: Final = 30  # A phase with fewer boards cannot block.


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseChange:
    phase: str
    change: Estimate  # Mean change; above 0, the candidate is worse.
    num_boards: int
    adjusted_p: float
    """P-value of "the change is at most the tolerance"; 1 with too few boards."""
    blocks: bool


def phase_changes(differences: Mapping[str, Sequence[float]], *, tolerance: float) -> tuple[PhaseChange, ...]:
    """Return a test per phase. `differences`: phase -> change of each board (two or more). `tolerance`: largest mean change allowed."""
    means = {phase: (fmean(values), stdev(values) / math.sqrt(len(values))) for phase, values in differences.items()}
    adjusted = holm([_p_value(*means[phase], tolerance) if len(differences[phase]) >= FEWEST_BOARDS else 1.0 for phase in means])
    changes = []
    for (phase, (mean, standard_error)), p in zip(means.items(), adjusted, strict=True):
        change, num_boards = normal_interval(mean, standard_error), len(differences[phase])
        changes.append(PhaseChange(phase=phase, change=change, num_boards=num_boards, adjusted_p=p, blocks=p <= LEVEL))
    return tuple(changes)


def _p_value(mean: float, standard_error: float, tolerance: float) -> float:
    if standard_error == 0:  # All boards changed equally.
        return float(mean <= tolerance)
    return NormalDist().cdf((tolerance - mean) / standard_error)
