"""Pools one number over runs with different seeds: the interval between runs (Student's t), and the interval that each run's games leave.

The two answer different questions. The interval between runs comes from how the runs differ, so it covers everything that a seed changes.
The interval within runs comes from the runs' own intervals; it covers the games of these very runs, and says nothing about another seed.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from grpo.match.intervals import Estimate


def between_runs(values: Sequence[float]) -> Estimate | None:
    """Return the mean of the runs' values with its 95 % interval, m +- t s / sqrt(n); None for a single run, which has no spread.

    s is the sample standard deviation, and t the quantile of Student's distribution with n - 1 degrees of freedom.

    >>> estimate = between_runs([10.0, 20.0, 30.0])
    >>> round(estimate.value), round(estimate.low, 2), round(estimate.high, 2)
    (20, -4.84, 44.84)
    """
    if len(values) < 2:
        return None
    from scipy import stats  # Here, for it takes a second to import.

    mean, margin = fmean(values), float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
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
