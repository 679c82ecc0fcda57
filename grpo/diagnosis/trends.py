"""Tests of noisy series (a number per log row): has the series changed, and how much may it have risen?"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

SURE: Final = 4.0
"""A certain change exceeds this many standard errors. `trend_of` tests three changes, so the limit is high."""
SURE_FROM_BEST: Final = 4.5
"""The same for a fall from the highest tenth of the run, which is partly high by chance."""
_FEW: Final = 15  # Fewer rows do not show how neighboring rows are correlated, so ranks are tested.
_RANK_P: Final = (0.02, 0.005)  # By ranks, a change is certain if p is smaller: [0] below ten rows, [1] from ten rows on.
_MAX_CORRELATION: Final = 0.97
_MEDIAN_ERROR: Final = 1.2533  # Standard error of a median / of a mean: sqrt(pi / 2).


@dataclass(frozen=True, slots=True)
class Trend:
    start: float  # Median of the first fifth of the rows, or of the first three if their change to `end` is larger and certain.
    end: float  # Median of the last fifth.
    best: float  # Highest median of a tenth (at least three rows).
    last: float  # Median of the last tenth.
    change: float  # 0 if it may be noise.
    most: float  # One-sided upper 95 % bound of a straight line's rise; infinite for fewer than 15 rows.
    noise: float  # Standard deviation of the rows: `noise_of`, or around the mean for fewer than 15 rows.
    has_lost: bool  # Whether `last` is certainly below `best`; False for fewer than 15 rows.


def median(values: Any) -> float:
    return float(np.median(values))


def rank_correlation(first: Any, second: Any) -> tuple[float, float]:
    """Return Kendall's tau and its two-sided p-value; NaN if an input is constant."""
    from scipy.stats import kendalltau

    result = kendalltau(first, second)
    return float(result.statistic), float(result.pvalue)


def noise_of(values: Array) -> tuple[float, float]:
    """Return the rows' standard deviation, and the factor by which correlation r of neighboring rows raises the variance of a mean.

    The deviation is around straight lines through two to four parts of the rows. The part with the largest deviation is left out, because
    its level may change suddenly.
    """
    parts = np.array_split(values, 4 if len(values) >= 40 else 3 if len(values) >= 24 else 2)
    residuals = [part - _line(part) for part in parts]
    residuals = sorted(residuals, key=lambda part: float(part @ part) / len(part))[: max(1, len(residuals) - 1)]
    square, rows = sum(float(part @ part) for part in residuals), sum(map(len, residuals))
    if square <= 0:
        return 0.0, 1.0
    r = sum(float(part[1:] @ part[:-1]) for part in residuals) / square
    # A line fitted to n rows lowers r by about (2 + 4r) / n.
    r = min(_MAX_CORRELATION, max(0.0, r + (2 + 4 * max(0.0, r)) * len(residuals) / rows))
    return math.sqrt(square / max(1, rows - 2 * len(residuals))), (1 + r) / (1 - r)


def _line(part: Array) -> Array:
    at = np.arange(len(part)) - (len(part) - 1) / 2
    line: Array = part.mean() + at * (float(at @ part) / max(1e-300, float(at @ at)))
    return line


def trend_of(values: Array) -> Trend:
    num_rows = len(values)
    fifth = max(1, num_rows // 5)
    start, end, first = median(values[:fifth]), median(values[-fifth:]), median(values[:3])
    tenths = [median(part) for part in np.array_split(values, min(10, max(1, num_rows // 3)))]
    best, last = max(tenths), tenths[-1]
    if num_rows < _FEW:
        p_value = rank_correlation(np.arange(num_rows), values)[1] if num_rows > 3 else 1.0
        change = end - start if p_value < _RANK_P[num_rows >= 10] else 0.0
        return Trend(start, end, best, last, change, math.inf, float(np.std(values)), has_lost=False)
    noise, factor = noise_of(values)
    by_fifths = _MEDIAN_ERROR * noise * math.sqrt(2 * factor / fifth)
    by_line = noise * math.sqrt(12 * factor / num_rows)
    by_first = _MEDIAN_ERROR * noise * math.sqrt(factor / fifth + min(1.0, factor / 3))
    line = _line(values)
    slope = float(line[-1] - line[0])
    # Per test: tested change, change to report if certain and of the same sign, standard error.
    changes = ((end - start, end - start, by_fifths), (slope, end - start, by_line), (end - first, end - first, by_first))
    certain = [change for tested, change, error in changes if abs(tested) > SURE * error and tested * change > 0]
    change = max(certain, key=abs, default=0.0)
    by_tenths = _MEDIAN_ERROR * noise * math.sqrt(2 * factor / max(1, num_rows // len(tenths)))
    has_lost = best - last > SURE_FROM_BEST * by_tenths
    start = first if change and abs(change) > abs(end - start) else start
    return Trend(start, end, best, last, change, slope + 1.645 * by_line, noise, has_lost=has_lost)
