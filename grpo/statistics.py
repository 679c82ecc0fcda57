"""Score intervals from paired games, and Elo."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_Z95: Final = 1.959964


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreInterval:
    """A match score with its 95 % interval; a win is 1, a draw 0.5."""

    score: float
    low: float
    high: float
    num_pairs: int

    def __str__(self) -> str:
        low, mid, high = elo(self.low), elo(self.score), elo(self.high)
        return f"{self.score:.3f} [{self.low:.3f}, {self.high:.3f}] = {mid:+.0f} Elo [{low:+.0f}, {high:+.0f}], {self.num_pairs} pairs"


def paired_interval(pair_scores: Sequence[float]) -> ScoreInterval:
    """Return the mean of the pairs' scores with a 95 % interval.

    The two games of an opening are one observation, for they share its luck. The interval is the normal one after adding one pair lost and
    one won (Agresti and Coull's idea, The American Statistician 52, 1998), so that a handful of pairs, or pairs that all ended alike,
    never look certain: 16 pairs all lost give [0, 0.16], not [0, 0].

    Args:
        pair_scores: mean score of the two games of each opening, each in [0, 1].

    Raises ValueError when there is no pair.
    """
    if not pair_scores:
        raise ValueError("no pairs, no score: play at least one opening")
    padded = [*pair_scores, 0.0, 1.0]
    centre = sum(padded) / len(padded)
    variance = sum((score - centre) ** 2 for score in padded) / len(padded)
    half_width = _Z95 * math.sqrt(variance / len(padded))
    return ScoreInterval(
        score=sum(pair_scores) / len(pair_scores),
        low=max(0.0, centre - half_width),
        high=min(1.0, centre + half_width),
        num_pairs=len(pair_scores),
    )


def elo(score: float) -> float:
    """Return the rating difference that a score stands for, 400 log10(s / (1 - s)), held within +-1,200 so that it is finite.

    >>> round(elo(0.64))
    100
    """
    held = min(max(score, 0.001), 0.999)
    return 400 * math.log10(held / (1 - held))
