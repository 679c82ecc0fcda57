"""Pools one number over runs with different seeds: the interval between runs (Student's t), and the interval that each run's games leave.

The two answer different questions. The interval between runs comes from how the runs differ, so it covers everything that a seed changes.
The interval within runs comes from the runs' own intervals; it covers the games of these very runs, and says nothing about another seed.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Final

from grpo.match.intervals import Estimate

_COVERAGE: Final = 0.95
_NUM_HALVINGS: Final = 60


def between_runs(values: Sequence[float]) -> Estimate | None:
    """Return the mean of the runs' values with its 95 % interval, m +- t s / sqrt(n); None for a single run, which has no spread.

    s is the sample standard deviation, and t the quantile of Student's distribution with n - 1 degrees of freedom.

    >>> estimate = between_runs([10.0, 20.0, 30.0])
    >>> round(estimate.value), round(estimate.low, 2), round(estimate.high, 2)
    (20, -4.84, 44.84)
    """
    if len(values) < 2:
        return None
    mean, margin = fmean(values), student_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(value=mean, low=mean - margin, high=mean + margin)


def within_runs(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of independent estimates, with a 95 % interval computed from theirs (MOVER, as `intervals.difference`).

    >>> pooled = within_runs([Estimate(value=10.0, low=7.0, high=13.0), Estimate(value=20.0, low=16.0, high=24.0)])
    >>> pooled.value, pooled.low, pooled.high
    (15.0, 12.5, 17.5)
    """
    mean = fmean(each.value for each in estimates)
    below = math.hypot(*(each.value - each.low for each in estimates)) / len(estimates)
    above = math.hypot(*(each.high - each.value for each in estimates)) / len(estimates)
    return Estimate(value=mean, low=mean - below, high=mean + above)


def student_quantile(degrees_of_freedom: int) -> float:
    """Return the t with 95 % of Student's distribution in [-t, t]: 12.7 for 1 degree of freedom, 4.30 for 2, 1.96 for many.

    Raises ValueError below 1 degree of freedom.
    """
    if degrees_of_freedom < 1:
        raise ValueError(f"{degrees_of_freedom} degrees of freedom: an interval needs two values or more")
    low, high = 0.0, math.pi / 2
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _central_mass(middle, degrees_of_freedom) < _COVERAGE else (low, middle)
    return math.sqrt(degrees_of_freedom) * math.tan((low + high) / 2)


def _central_mass(angle: float, degrees_of_freedom: int) -> float:
    """Return the mass in [-t, t], t = sqrt(n) tan(angle), in closed form: Abramowitz and Stegun 26.7.3 (odd n) and 26.7.4 (even n)."""
    is_odd = degrees_of_freedom % 2
    term, total = math.cos(angle) if is_odd else 1.0, 0.0
    for power in range(is_odd, degrees_of_freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + math.sin(angle) * total) if is_odd else math.sin(angle) * total
