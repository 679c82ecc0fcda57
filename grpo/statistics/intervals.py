"""What paired games say: score, Elo and normalised Elo with intervals, chance of being the stronger, and several claims at once.

Two intervals live here. Ours adds one pair lost and one won before it takes the normal one (`paired_interval`, `match_statistics`): a
handful of pairs, or pairs that all ended alike, then never look certain. The plain normal one (`normal_statistics`) is what fastchess
and fishtest print; it is here so that their figures can be reproduced to the digit, and no verdict rests on it. From some hundred
pairs on the two agree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Self

LEVEL: Final = 0.025
"""One-sided error of a claim; "the lower end of the 95 % interval lies above one half" is the same test."""
NORMALISED_ELO_SCALE: Final = 800 / math.log(10)
"""Normalised Elo of a player whose expected score lies one standard deviation of a game above one half."""
EMPTY_COUNT: Final = 1e-3
"""Stands in for a count of 0, as in fastchess and fishtest: a likelihood needs every outcome to be possible."""
Z95: Final = 1.959964
"""Standard errors on each side of a 95 % interval."""
_NORMAL: Final = NormalDist()


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def margin(self) -> float:
        """Half of the interval's width: what stands after +-."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """How often each score occurred, from the worst to the best: trinomial (of games) or pentanomial (of pairs)."""

    counts: tuple[float, ...]
    """Three of games (lost, drawn, won), or five of pairs (LL, LD, WL or DD, WD, WW)."""

    @classmethod
    def of_games(cls, *, wins: int, draws: int, losses: int) -> Self:
        """Return the trinomial counts; they take the two games of an opening for independent."""
        return cls(counts=(losses, draws, wins))

    @classmethod
    def of_pairs(cls, pair_scores: Sequence[float]) -> Self:
        """Return the pentanomial counts of the mean scores of pairs of games.

        Raises ValueError when a score is no multiple of a quarter in [0, 1].
        """
        counts = [0] * 5
        for score in pair_scores:
            if score not in (0, 0.25, 0.5, 0.75, 1):
                raise ValueError(f"a pair of games cannot score {score}: its mean is 0, 0.25, 0.5, 0.75 or 1")
            counts[int(4 * score)] += 1
        return cls(counts=tuple(counts))

    @property
    def scores(self) -> tuple[float, ...]:
        """Return the score that each count is of, equally spaced from 0 to 1."""
        return tuple(index / (len(self.counts) - 1) for index in range(len(self.counts)))

    @property
    def games_each(self) -> int:
        """Return how many games one observation holds: 1, or 2 for pairs."""
        return (len(self.counts) - 1) // 2

    @property
    def total(self) -> float:
        """Return the number of observations."""
        return sum(self.counts)

    def without_empty(self) -> Self:
        """Return the same with `EMPTY_COUNT` where nothing was counted."""
        return type(self)(counts=tuple(count or EMPTY_COUNT for count in self.counts))

    def padded(self) -> Self:
        """Return the same with one more of the worst and one more of the best (Agresti and Coull's idea)."""
        return type(self)(counts=(self.counts[0] + 1, *self.counts[1:-1], self.counts[-1] + 1))

    def mean_and_variance(self) -> tuple[float, float]:
        """Return mean and variance of one observation's score."""
        mean = sum(count * score for count, score in zip(self.counts, self.scores, strict=True)) / self.total
        return mean, sum(count * (score - mean) ** 2 for count, score in zip(self.counts, self.scores, strict=True)) / self.total


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchStatistics:
    """All that is said of a match, seen from its first player; every number is finite."""

    score: Estimate
    elo: Estimate
    """Logistic: 400 log10(s / (1 - s)), held within +-1,200."""
    normalised_elo: Estimate
    """The mean above one half in standard deviations of a game, times 800 / ln 10: it does not shrink as draws become more frequent."""
    likelihood_of_superiority: float
    """Chance that the first player is the stronger one, were both equally likely before the match."""


def match_statistics(outcomes: Outcomes) -> MatchStatistics:
    """Return what we report: intervals after one observation lost and one won are added; the score itself is the match's own.

    Raises ValueError when there is no game.
    """
    _refuse_empty(outcomes.total)
    return _statistics(outcomes.mean_and_variance()[0], outcomes.padded())


def normal_statistics(outcomes: Outcomes) -> MatchStatistics:
    """Return what fastchess prints: plain normal intervals, the variance taken of pairs when these are given.

    Raises ValueError when there is no game.
    """
    _refuse_empty(outcomes.total)
    filled = outcomes if outcomes.mean_and_variance()[1] > 0 else outcomes.without_empty()
    return _statistics(filled.mean_and_variance()[0], filled)


def _statistics(score: float, seen: Outcomes) -> MatchStatistics:
    centre, variance = seen.mean_and_variance()
    deviation = math.sqrt(variance)
    half_width = Z95 * deviation / math.sqrt(seen.total)
    points = (score, max(0.0, centre - half_width), min(1.0, centre + half_width))
    # A pair's mean varies half as much as a game's score does: M. Van den Bergh, Normalized Elo (cantate.be/Fishtest/normalized_elo.pdf).
    deviation_of_game = deviation * math.sqrt(seen.games_each)
    return MatchStatistics(
        score=_estimate(points),
        elo=_estimate([elo(point) for point in points]),
        normalised_elo=_estimate([NORMALISED_ELO_SCALE * (point - 0.5) / deviation_of_game for point in points]),
        likelihood_of_superiority=_NORMAL.cdf((centre - 0.5) / deviation * math.sqrt(seen.total)),
    )


def _estimate(points: Sequence[float]) -> Estimate:
    value, low, high = points
    return Estimate(value=value, low=low, high=high)


def _refuse_empty(count: float) -> None:
    if not count:
        raise ValueError("no pairs, no score: play at least one opening")


def paired_interval(pair_scores: Sequence[float]) -> ScoreInterval:
    """Return the mean of the pairs' scores with a 95 % interval.

    The two games of an opening are one observation, for they share its luck. The interval is the normal one after adding one pair lost and
    one won (Agresti and Coull's idea, The American Statistician 52, 1998), so that a handful of pairs, or pairs that all ended alike,
    never look certain: 16 pairs all lost give [0, 0.16], not [0, 0].

    Args:
        pair_scores: mean score of the two games of each opening, each in [0, 1].

    Raises ValueError when there is no pair.
    """
    centre, deviation = _padded_mean(pair_scores)
    return ScoreInterval(
        score=sum(pair_scores) / len(pair_scores),
        low=max(0.0, centre - Z95 * deviation),
        high=min(1.0, centre + Z95 * deviation),
        num_pairs=len(pair_scores),
    )


def p_value(pair_scores: Sequence[float]) -> float:
    """Return the one-sided p-value against "the expected score is at most one half"; below `LEVEL` where `paired_interval` lies above it.

    Raises ValueError when there is no pair.
    """
    centre, deviation = _padded_mean(pair_scores)
    return _NORMAL.cdf((0.5 - centre) / deviation)


def _padded_mean(pair_scores: Sequence[float]) -> tuple[float, float]:
    """Return the mean after one pair lost and one won are added, and its standard error, which is never 0."""
    _refuse_empty(len(pair_scores))
    padded = [*pair_scores, 0.0, 1.0]
    centre = sum(padded) / len(padded)
    variance = sum((score - centre) ** 2 for score in padded) / len(padded)
    return centre, math.sqrt(variance / len(padded))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for being several, in their order: a claim holds at level a when its adjusted value is at most a.

    Step-down (S. Holm, Scandinavian Journal of Statistics 6, 1979): the smallest of m is multiplied by m, the next by m - 1, and none
    falls below the one before it. The chance of even one false claim is then at most a, however the claims hang together.
    """
    adjusted = [0.0] * len(p_values)
    floor = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = floor
    return adjusted


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a chance (E. B. Wilson, JASA 22, 1927), for scores of single games too: 6.4 of 64 give 0.048 to 0.198.

    A score with draws varies less than wins and losses do, so for it the interval is on the wide side.

    Raises ValueError when there is no trial.
    """
    if trials <= 0:
        raise ValueError("no trials, no interval")
    share, spread = successes / trials, Z95**2 / trials
    centre = (share + spread / 2) / (1 + spread)
    half_width = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    return max(0.0, centre - half_width), min(1.0, centre + half_width)


def elo(score: float) -> float:
    """Return the rating difference that a score stands for, 400 log10(s / (1 - s)), held within +-1,200 so that it is finite.

    >>> round(elo(0.64))
    100
    """
    held = min(max(score, 0.001), 0.999)
    return 400 * math.log10(held / (1 - held))


def expected_score(elo_difference: float) -> float:
    """Return the score that a rating difference stands for, 1 / (1 + 10^(-d / 400)), the inverse of `elo`."""
    odds = 10 ** (-abs(elo_difference) / 400)  # Of the weaker player: never too large for a float.
    return 1 / (1 + odds) if elo_difference >= 0 else odds / (1 + odds)


def difference(first: Estimate, second: Estimate) -> Estimate:
    """Return first less second, of two independent samples, with the 95 % interval that follows from theirs.

    Each end comes from the ends of the two that it is reached by, so that lopsided intervals stay so (MOVER: G. Y. Zou and A. Donner,
    Statistics in Medicine 27, 2008). Samples that hang together, as games from the same openings do, mostly make it wider than need be.

    >>> round(difference(Estimate(value=0.6, low=0.57, high=0.63), Estimate(value=0.5, low=0.46, high=0.54)).low, 6)
    0.05
    """
    value = first.value - second.value
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value=value, low=value - below, high=value + above)
