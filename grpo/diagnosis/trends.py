"""Statistical tests of noisy series: whether a level changes, and by how much at most.

Rows count for less where neighbors are alike, as running means are. Errors are known by simulation, see `tests/proofs`.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

SURE: Final = 4.0
"""Standard errors of a change that is no noise, in the largest of three contrasts."""
SURE_FROM_BEST: Final = 4.5
"""The same for a fall from the best of ten parts."""
_FEW: Final = 15  # Fewer rows do not show how their noise is correlated: they are ranked.
_RANKED: Final = (0.02, 0.005)  # Largest probability by chance of a rank correlation that counts: of fewer than ten rows, and of more.
_MOST_ALIKE: Final = 0.97
_MEDIAN: Final = 1.2533  # Standard error of a median over that of a mean, sqrt(pi / 2).


@dataclass(frozen=True, slots=True)
class Trend:
    """How the level of a series changes."""

    start: float  # Median of the first fifth of the rows, or of the first three where a change is over before.
    end: float  # Median of the last fifth.
    best: float  # Median of the highest tenth of the run.
    last: float  # Median of the last tenth of the run.
    change: float  # From start to end; 0 where it may be noise.
    most: float  # Upper 95 % bound of the rise of a straight line through all rows; infinite of few rows.
    noise: float  # Standard deviation of the rows around their level.
    has_lost: bool  # Whether it is no noise that the last tenth is below the best one.


def median(values: Any) -> float:
    """Return the median as a float."""
    return float(np.median(values))


def rank_correlation(first: Any, second: Any) -> tuple[float, float]:
    """Return Kendall's tau, and the probability of one as far from 0 by chance."""
    from scipy.stats import kendalltau  # Here, for it takes a second to import.

    found = kendalltau(first, second)
    return float(found.statistic), float(found.pvalue)


def noise_of(values: Array) -> tuple[float, float]:
    """Return the deviation of rows around the lines through four parts, and by how much their mean's variance exceeds that of free rows.

    The part with the largest deviation is left out: a sudden change of level is no noise. With a correlation r of neighbors, n rows are
    worth n (1 - r) / (1 + r).
    """
    parts = np.array_split(values, 4 if len(values) >= 40 else 3 if len(values) >= 24 else 2)
    rests = [part - _line(part) for part in parts]
    rests = sorted(rests, key=lambda rest: float(rest @ rest) / len(rest))[: max(1, len(rests) - 1)]
    square, rows = sum(float(rest @ rest) for rest in rests), sum(map(len, rests))
    if square <= 0:
        return 0.0, 1.0
    alike = sum(float(rest[1:] @ rest[:-1]) for rest in rests) / square
    alike = min(_MOST_ALIKE, max(0.0, alike + (2 + 4 * max(0.0, alike)) * len(rests) / rows))  # Short parts show too little of it.
    return math.sqrt(square / max(1, rows - 2 * len(rests))), (1 + alike) / (1 - alike)


def _line(part: Array) -> Array:
    """Return the straight line through rows, by least squares."""
    at = np.arange(len(part)) - (len(part) - 1) / 2
    line: Array = part.mean() + at * (float(at @ part) / max(1e-300, float(at @ at)))
    return line


def trend(values: Array) -> Trend:
    """Return how a series changes."""
    number = len(values)
    fifth = max(1, number // 5)
    start, end, first = median(values[:fifth]), median(values[-fifth:]), median(values[:3])
    tenths = [median(part) for part in np.array_split(values, min(10, max(1, number // 3)))]
    best, last = max(tenths), tenths[-1]
    if number < _FEW:
        chance = rank_correlation(np.arange(number), values)[1] if number > 3 else 1.0
        change = end - start if chance < _RANKED[number >= 10] else 0.0
        return Trend(start, end, best, last, change, math.inf, float(np.std(values)), has_lost=False)
    noise, excess = noise_of(values)
    by_fifths = _MEDIAN * noise * math.sqrt(2 * excess / fifth)
    by_line = noise * math.sqrt(12 * excess / number)
    by_first = _MEDIAN * noise * math.sqrt(excess / fifth + min(1.0, excess / 3))
    line = _line(values)
    slope = float(line[-1] - line[0])
    changes = ((end - start, end - start, by_fifths), (slope, end - start, by_line), (end - first, end - first, by_first))
    sure = [change for seen, change, error in changes if abs(seen) > SURE * error and seen * change > 0]
    change = max(sure, key=abs, default=0.0)
    by_tenths = _MEDIAN * noise * math.sqrt(2 * excess / max(1, number // len(tenths)))
    has_lost = best - last > SURE_FROM_BEST * by_tenths
    start = first if change and abs(change) > abs(end - start) else start
    return Trend(start, end, best, last, change, slope + 1.645 * by_line, noise, has_lost=has_lost)
