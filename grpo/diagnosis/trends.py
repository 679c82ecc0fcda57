"""Trends of noisy series: robust levels of a series' parts and the standard errors of their differences.

Rows are taken in their order; levels are medians, so that single outliers do not count. Errors allow for autocorrelated rows, such as the
running means that many trainers log.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from grpo.diagnosis.history import Series

_NUM_BLOCKS: Final = 10
_MIN_BLOCK: Final = 3
_PART: Final = 5
"""The first and last fifth of the rows are the early and the late part."""
_TAIL: Final = 20
"""The last twentieth of the rows is the tail: a run is often stopped soon after it falls apart."""
_MAX_TAIL: Final = 20
_MEDIAN_ERROR: Final = 1.2533
"""Standard error of a median relative to that of a mean, sqrt(pi / 2)."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Difference between two levels of a series."""

    before: float
    after: float
    error: float
    """Standard error of the difference; infinite if there are too few rows."""

    @property
    def size(self) -> float:
        """The later level minus the earlier one."""
        return self.after - self.before

    def exceeds(self, sigmas: float) -> bool:
        """Return whether the series rose by more than this many standard errors."""
        return self.size > sigmas * self.error

    def falls_by(self, sigmas: float) -> bool:
        """Return whether the series fell by more than this many standard errors."""
        return -self.size > sigmas * self.error


def part_size(number: int) -> int:
    """Return the number of rows of the early and the late part of a series with this many rows."""
    return max(min(_MIN_BLOCK, number), number // _PART)


def early_values(series: Series) -> Sequence[float]:
    """Return the values of the early part."""
    return series.values[: part_size(len(series))]


def tail(series: Series) -> float:
    """Return the median of the last twentieth of the rows, of at least three and at most twenty."""
    return statistics.median(series.values[-max(_MIN_BLOCK, min(_MAX_TAIL, len(series) // _TAIL)) :])


def level_change(series: Series) -> Shift:
    """Return the change from the early to the late part."""
    values = series.values
    size = part_size(len(values))
    return Shift(statistics.median(values[:size]), statistics.median(values[-size:]), _error(values, size))


def fall_from_peak(series: Series) -> Shift:
    """Return the change from the best tenth of the rows to the last tenth."""
    values = series.values
    blocks = _blocks(values)
    best = max(statistics.median(block) for block in blocks)
    return Shift(best, statistics.median(blocks[-1]), _error(values, min(map(len, blocks))))


def noise(series: Series) -> float:
    """Return the standard deviation of the rows around the levels of their neighbourhoods."""
    return _noise(series.values)[0]


def _blocks(values: Sequence[float]) -> list[Sequence[float]]:
    number = max(1, min(_NUM_BLOCKS, len(values) // _MIN_BLOCK))
    cuts = [round(index * len(values) / number) for index in range(number + 1)]
    return [values[start:end] for start, end in pairwise(cuts)]


def _error(values: Sequence[float], size: int) -> float:
    """Return the standard error of the difference between the medians of two parts with this many rows each."""
    if len(values) < 2 * _MIN_BLOCK:
        return math.inf
    deviation, widening = _noise(values)
    return _MEDIAN_ERROR * deviation * math.sqrt(2 * widening / size)


def _noise(values: Sequence[float]) -> tuple[float, float]:
    """Return the deviation of the rows around the lines through their blocks, and how many times fewer they count for their correlation.

    With a lag-one autocorrelation of r, n rows are worth n (1 - r) / (1 + r).
    """
    rests: list[float] = []
    for block in _blocks(values):
        middle, mean = (len(block) - 1) / 2, statistics.fmean(block)
        spread = sum((index - middle) ** 2 for index in range(len(block)))
        slope = sum((index - middle) * value for index, value in enumerate(block)) / spread if len(block) > _MIN_BLOCK else 0.0
        rests += [value - mean - slope * (index - middle) for index, value in enumerate(block)]
    square = sum(rest**2 for rest in rests)
    if square == 0:
        return 0.0, 1.0
    alike = sum(one * other for one, other in pairwise(rests)) / square
    return math.sqrt(square / max(1, len(rests) - len(_blocks(values)))), (1 + alike) / (1 - alike) if 0 < alike < 1 else 1.0
