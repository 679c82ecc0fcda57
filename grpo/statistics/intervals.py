"""Confidence intervals, Elo, and Holm's correction for multiple testing.

A pair score is the mean score of an opening's two games, one with each color, in [0, 1].
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import NormalDist, fmean, stdev
from typing import Final

LEVEL: Final = 0.025  # A claim counts as proven if its one-sided p-value is at most this.
Z95: Final = 1.959964  # Half-width of a 95 % interval in standard errors.
REPEATED_Z: Final = (2.178, 2.178)
"""Half-widths, in standard errors, of two intervals: one after half of the sample, one at its end.

Both at once contain the truth with probability 95 %, so games may stop after the first (Pocock, Biometrika 64, 1977).
"""
_NORMAL: Final = NormalDist()


class Unit(StrEnum):
    SCORE = "score"  # A win is 1, a draw 0.5.
    ELO = "Elo"
    REGRET = "win probability"  # Lower is better.


_FORMATS: Final = {Unit.SCORE: ".3f", Unit.ELO: "+,.0f", Unit.REGRET: ".4f"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    value: float
    low: float
    high: float
    num_pairs: int = 0  # 0 if the value is no match score.

    def text(self, unit: Unit, *, is_change: bool = False, suffix: str = "") -> str:
        """Return the value and its interval. Elo has a sign; with `is_change`, any number has.

        >>> Estimate(value=0.6025, low=0.5741, high=0.6295).text(Unit.SCORE)
        '0.603 [0.574, 0.629]'
        """
        sign = "+" if is_change and unit != Unit.ELO else ""
        value, low, high = (format(number, f"{sign}{_FORMATS[unit]}") for number in (self.value, self.low, self.high))
        return f"{value}{suffix} [{low}, {high}]"

    @property
    def score_text(self) -> str:
        """Score and Elo.

        >>> Estimate(value=0.6025, low=0.5741, high=0.6295, num_pairs=150).score_text
        '0.603 [0.574, 0.629] = +72 Elo [+52, +92], 150 pairs'
        """
        pairs = "pair" if self.num_pairs == 1 else "pairs"
        return f"{self.text(Unit.SCORE)} = {elo_estimate(self).text(Unit.ELO, suffix=' Elo')}, {self.num_pairs} {pairs}"


def normal_interval(mean: float, standard_error: float, *, z: float = Z95) -> Estimate:
    return Estimate(value=mean, low=mean - z * standard_error, high=mean + z * standard_error)


def regret_interval(mean: float, standard_error: float) -> Estimate:
    """Return a 95 % interval, cut off below 0."""
    interval = normal_interval(mean, standard_error)
    return replace(interval, low=max(0.0, interval.low))


def paired_interval(pair_scores: Sequence[float]) -> Estimate:
    """Return the mean of pair scores with its 95 % interval. Raises ValueError without a pair.

    The interval, not the mean, has one lost and one won pair added (after Agresti and Coull, The American Statistician 52, 1998). So a few
    pairs, or equal pairs, never look certain: 16 lost pairs give [0, 0.16].
    """
    center, standard_error = _padded_mean(pair_scores)
    return Estimate(
        value=sum(pair_scores) / len(pair_scores),
        low=max(0.0, center - Z95 * standard_error),
        high=min(1.0, center + Z95 * standard_error),
        num_pairs=len(pair_scores),
    )


def p_value(pair_scores: Sequence[float]) -> float:
    """Return the one-sided p-value of "the expected score is at most one half". Raises ValueError without a pair.

    The result is below `LEVEL` exactly if `paired_interval` lies above one half.
    """
    center, standard_error = _padded_mean(pair_scores)
    return _NORMAL.cdf((0.5 - center) / standard_error)


def _padded_mean(pair_scores: Sequence[float]) -> tuple[float, float]:
    if not pair_scores:
        raise ValueError("no pairs, no score: play at least one opening")
    padded = [*pair_scores, 0.0, 1.0]
    center = sum(padded) / len(padded)
    variance = sum((score - center) ** 2 for score in padded) / len(padded)
    return center, math.sqrt(variance / len(padded))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple testing (Holm, Scandinavian Journal of Statistics 6, 1979), in the given order.

    The smallest of m is multiplied by m, the next by m - 1, and so on. In this order, results never fall.
    """
    adjusted = [0.0] * len(p_values)
    floor = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = floor
    return adjusted


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return a proportion's 95 % interval (E. B. Wilson, JASA 22, 1927)."""
    from scipy import stats

    low, high = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    return float(low), float(high)


def elo(score: float) -> float:
    """Return the Elo difference of an expected score, clipped to +-1,200.

    >>> round(elo(0.64))
    100
    """
    clipped = min(max(score, 0.001), 0.999)
    return 400 * math.log10(clipped / (1 - clipped))


def elo_estimate(score: Estimate) -> Estimate:
    return Estimate(value=elo(score.value), low=elo(score.low), high=elo(score.high))


def expected_score(elo_difference: float) -> float:
    """Return the expected score of an Elo difference, the inverse of `elo`."""
    odds = 10 ** (-abs(elo_difference) / 400)  # At most 1, so it cannot overflow.
    return 1 / (1 + odds) if elo_difference >= 0 else odds / (1 + odds)


def difference(first: Estimate, second: Estimate) -> Estimate:
    """Return `first` minus `second`, two independent estimates, with its 95 % interval.

    MOVER (G. Y. Zou and A. Donner, Statistics in Medicine 27, 2008) combines asymmetric intervals. The interval is too wide for positively
    correlated estimates.

    >>> round(difference(Estimate(value=0.6, low=0.57, high=0.63), Estimate(value=0.5, low=0.46, high=0.54)).low, 6)
    0.05
    """
    value = first.value - second.value
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value=value, low=value - below, high=value + above)


def between_runs(values: Sequence[float]) -> Estimate | None:
    """Return the mean of one number per run, with Student's 95 % interval; None for fewer than two runs.

    >>> estimate = between_runs([10.0, 20.0, 30.0])
    >>> round(estimate.value), round(estimate.low, 2), round(estimate.high, 2)
    (20, -4.84, 44.84)
    """
    if len(values) < 2:
        return None
    from scipy import stats

    mean, margin = fmean(values), float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return Estimate(value=mean, low=mean - margin, high=mean + margin)


def claimed_mean(runs: Sequence[Estimate]) -> Estimate | None:
    """Return the mean with its wider interval, between or within runs; None for fewer than two runs."""
    between = between_runs([run.value for run in runs])
    return None if between is None else max(between, within_runs(runs), key=lambda mean: mean.high - mean.low)


def within_runs(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of independent estimates, one per run, with its 95 % interval (MOVER). Differences between seeds are not covered.

    >>> pooled = within_runs([Estimate(value=10.0, low=7.0, high=13.0), Estimate(value=20.0, low=16.0, high=24.0)])
    >>> pooled.value, pooled.low, pooled.high
    (15.0, 12.5, 17.5)
    """
    mean = fmean(run.value for run in estimates)
    below = math.hypot(*(run.value - run.low for run in estimates)) / len(estimates)
    above = math.hypot(*(run.high - run.value for run in estimates)) / len(estimates)
    return Estimate(value=mean, low=mean - below, high=mean + above)
