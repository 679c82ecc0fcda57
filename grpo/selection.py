"""Which checkpoint may be called better than the pretrained policy, and with what certainty.

The best of many equal checkpoints looks better than it is (the winner's curse), so three stages share no game: held-out regret screens all,
screening games choose one, and only the confirmation games, played after the choice, are reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from grpo.statistics import ScoreInterval


class Verdict(StrEnum):
    """What the confirmation games say of the candidate."""

    BETTER = "better"
    NO_IMPROVEMENT = "no improvement shown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The verdict and the two confirmation matches it rests on, seen from the candidate."""

    candidate: int
    """Its step."""
    best_moves: ScoreInterval
    sampled_moves: ScoreInterval
    verdict: Verdict


def candidates_by_regret(regret_by_step: Mapping[int, float], count: int) -> list[int]:
    """Return the steps of the checkpoints with the lowest held-out regret, best first; the later one of equals."""
    return sorted(regret_by_step, key=lambda step: (regret_by_step[step], -step))[:count]


def best_by_screening(scores_by_step: Mapping[int, ScoreInterval]) -> int:
    """Return the step of the candidate with the highest screening score, the first named of equals."""
    return max(scores_by_step, key=lambda step: scores_by_step[step].score)


def decide(candidate: int, best_moves: ScoreInterval, sampled_moves: ScoreInterval) -> Decision:
    """Return the verdict on a candidate: better when the interval of its best moves lies above one half.

    One claim, about best moves, the way a champion plays. Sampled moves are reported beside it: at T = 1 they measure how sharp a
    policy is as much as how good it is.
    """
    return Decision(
        candidate=candidate,
        best_moves=best_moves,
        sampled_moves=sampled_moves,
        verdict=Verdict.BETTER if best_moves.low > 0.5 else Verdict.NO_IMPROVEMENT,
    )


def peak_step(regret_by_step: Mapping[int, float], screening: Mapping[int, ScoreInterval]) -> int:
    """Return the step that `peak` names: of the screened candidates the one with the best lower bound, else the lowest regret.

    A bound, not a point: the highest of many noisy scores is mostly luck.
    """
    if screening:
        return max(screening, key=lambda step: screening[step].low)
    return candidates_by_regret(regret_by_step, 1)[0]
