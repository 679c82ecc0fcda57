"""Sample size planning: the number of games that an Elo difference needs, and the difference that a number of games can show.

Sample sizes use the normal approximation n = (z_level + z_power)^2 variance / difference^2 and count pairs, because the two games of an
opening are one observation. The interval of verdicts adds one lost and one won pair and needs a few pairs more (`Certainty.is_padded`).
Below about thirty pairs the results are a rough guide.
"""

import itertools
import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

from grpo.base.errors import PlainError
from grpo.statistics.intervals import NORMALISED_ELO_SCALE, elo, expected_score
from grpo.statistics.sprt import Sprt, SprtModel

SMALLEST_ELO: Final = 0.01
"""Smaller differences would take billions of games."""
_NORMAL: Final = NormalDist()
_OVERSHOOT: Final = 0.5826
"""Mean overshoot of a random walk over a bound, in standard deviations of a step (D. Siegmund, Sequential Analysis, 1985, chapter X)."""
_BISECTIONS: Final = 60


class PlanError(PlainError, ValueError):
    """A number of the plan is impossible; the message says which, and what is possible."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumptions:
    """Assumptions of a plan about the games; raises PlanError if a number is not a probability or not a correlation."""

    draw_rate: float
    """Fraction of drawn games."""
    pair_correlation: float
    """Correlation of the scores of an opening's two games; 0 if independent, negative for openings that favour a colour."""

    def __post_init__(self) -> None:
        if not 0 <= self.draw_rate < 1:
            raise PlanError(f"a draw rate of {self.draw_rate} is impossible or leaves nothing to tell: give one in [0, 1)")
        if not -1 < self.pair_correlation <= 1:
            raise PlanError(f"a pair correlation of {self.pair_correlation} is impossible: give one above -1, at most 1")

    @property
    def highest_score(self) -> float:
        """Return the highest expected score at this draw rate: that of a player who loses no game."""
        return 1 - self.draw_rate / 2

    def pair_variance(self, score: float) -> float:
        """Return the variance of a pair's mean score.

        The variance of a game is s (1 - s) - d / 4, with win probability s - d / 2 and draw rate d.

        Raises PlanError if the score is impossible at this draw rate.
        """
        if not 1 - self.highest_score <= score <= self.highest_score:
            room = f"{1 - self.highest_score:.3f} to {self.highest_score:.3f}"
            raise PlanError(f"a score of {score:.3f} is impossible at {self.draw_rate:.0%} draws, which leave {room}: lower the draw rate")
        return max(0.0, score * (1 - score) - self.draw_rate / 4) * (1 + self.pair_correlation) / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Certainty:
    """Significance level and power of a plan; raises PlanError for values that are not probabilities."""

    level: float
    """One-sided error: the probability of claiming a difference that does not exist."""
    probability: float
    """Power: the probability of showing a difference that exists."""
    is_padded: bool
    """Whether to plan for `grpo.statistics.intervals.paired_interval`; else for the plain normal interval."""

    def __post_init__(self) -> None:
        if not 0 < self.level < 0.5:
            raise PlanError(f"a level of {self.level} is no test: give a one-sided error between 0 and 0.5, such as 0.025")
        if not self.level < self.probability < 1:
            raise PlanError(
                f"a probability of {self.probability} cannot be planned for: give one above the level ({self.level}) and below 1"
            )

    def pairs(self, variance: float, difference: float) -> int:
        """Return the number of pairs of this variance that show a mean this far above one half."""
        z_level, z_power = _NORMAL.inv_cdf(1 - self.level), _NORMAL.inv_cdf(self.probability)
        textbook = max(1, math.ceil((z_level + z_power) ** 2 * variance / difference**2))
        if not self.is_padded:
            return textbook

        def shows(num_pairs: int) -> bool:
            # The padded sum of deviations from one half and its standard error, at the expected deviations.
            size, excess = num_pairs + 2, num_pairs * difference
            spread = (num_pairs * (variance + difference**2) + 0.5) - excess**2 / size
            return excess - z_power * math.sqrt(num_pairs * variance) >= z_level * math.sqrt(spread)

        return next(num_pairs for num_pairs in itertools.count(textbook) if shows(num_pairs))


def games_head_to_head(elo_difference: float, *, assumed: Assumptions, certainty: Certainty) -> int:
    """Return the (even) number of games between two players that show a difference of this size.

    >>> assumed = Assumptions(draw_rate=0.3, pair_correlation=0.0)
    >>> games_head_to_head(30, assumed=assumed, certainty=Certainty(level=0.05, probability=0.8, is_padded=False))
    578

    Raises PlanError if the difference is below `SMALLEST_ELO`, or impossible at this draw rate.
    """
    _refuse_no_difference(elo_difference)
    score = expected_score(elo_difference)
    return 2 * certainty.pairs(assumed.pair_variance(score), score - 0.5)


def games_per_arm(elo_difference: float, *, around_score: float, assumed: Assumptions, certainty: Certainty) -> int:
    """Return the (even) number of games that each of two players must play against a common opponent to show their difference.

    The two ratings are half of the difference above and below that of `around_score`. The variance doubles, so this takes about three
    times the games of a direct match, and far more if the opponent is too strong. It always uses the plain normal interval, because the
    padded one is for a single match.

    Raises PlanError for a score outside [0.001, 0.999], and for the reasons of `games_head_to_head`.
    """
    _refuse_no_difference(elo_difference)
    if not 0.001 <= around_score <= 0.999:
        raise PlanError(f"a score of {around_score} against the common opponent says nothing of strength: give one in [0.001, 0.999]")
    middle = elo(around_score)
    lower, upper = (expected_score(middle + side * elo_difference / 2) for side in (-1, 1))
    variance = assumed.pair_variance(lower) + assumed.pair_variance(upper)
    return 2 * replace(certainty, is_padded=False).pairs(variance, upper - lower)


def _refuse_no_difference(elo_difference: float) -> None:
    if not SMALLEST_ELO <= elo_difference < math.inf:
        raise PlanError(f"a difference of {elo_difference} Elo cannot be shown by any number of games: give one of at least {SMALLEST_ELO}")


def smallest_difference(num_games: int, *, assumed: Assumptions, certainty: Certainty) -> float | None:
    """Return the smallest Elo difference that this many head-to-head games show with that certainty; None if even +1,000 is not shown.

    Raises PlanError for fewer than two games.
    """
    if num_games < 2:
        raise PlanError(f"{num_games} games are not a pair: give at least 2")
    low, high = SMALLEST_ELO, min(1000.0, elo(assumed.highest_score))
    if high <= low or games_head_to_head(_inside(high), assumed=assumed, certainty=certainty) > num_games:
        return None
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if games_head_to_head(_inside(middle), assumed=assumed, certainty=certainty) > num_games:
            low = middle
        else:
            high = middle
    return high


def _inside(difference: float) -> float:
    """Return slightly less, so that rounding never makes the score of a player without losses impossible."""
    return difference * (1 - 1e-9)


@dataclass(frozen=True, kw_only=True, slots=True)
class SprtLength:
    """Expected length and result of a sequential test."""

    num_games: float
    """Mean number of games."""
    acceptance: float
    """Probability that the test accepts."""


def expected_sprt(test: Sprt, *, true_elo: float, assumed: Assumptions) -> SprtLength:
    """Return the mean number of games of a test that is evaluated after every pair, and its probability of acceptance.

    By A. Wald (Sequential Analysis, 1947): per pair, the log-likelihood ratio has drift m = (s1 - s0) (s - (s0 + s1) / 2) / var and
    variance v = (s1 - s0)^2 / var. From 0 it reaches b before a with probability (1 - e^(ha)) / (e^(hb) - e^(ha)), h = -2 m / v. Both
    bounds are moved outwards by the mean overshoot, which Wald neglects.

    Raises PlanError if `true_elo` is impossible at this draw rate, or the bounds are too close to each other.
    """
    score = expected_score(true_elo)
    variance = assumed.pair_variance(score)
    if variance == 0:
        raise PlanError(
            f"at {assumed.draw_rate:.0%} draws a player {true_elo:+.0f} Elo stronger has but one result: there is nothing to test"
        )
    score0, score1 = (_bound_score(bound, test.model, variance) for bound in (test.elo0, test.elo1))
    if score1 - score0 < 1e-9:
        raise PlanError(f"bounds of {test.elo0} and {test.elo1} Elo are too close to tell apart: move them apart")
    drift, step_variance = (score1 - score0) * (score - (score0 + score1) / 2) / variance, (score1 - score0) ** 2 / variance
    overshoot = _OVERSHOOT * math.sqrt(step_variance)
    lower, upper = test.lower - overshoot, test.upper + overshoot
    tilt = -2 * drift / step_variance
    if abs(tilt) * (upper - lower) < 1e-6:  # Limit of the formulas without drift.
        return SprtLength(num_games=-2 * lower * upper / step_variance, acceptance=-lower / (upper - lower))
    # Numerator and denominator divided by the larger exponential, so that none overflows.
    acceptance = (
        math.expm1(-tilt * lower) / math.expm1(tilt * (upper - lower))
        if tilt < 0
        else (math.exp(-tilt * upper) - math.exp(tilt * (lower - upper))) / -math.expm1(tilt * (lower - upper))
    )
    return SprtLength(num_games=max(2.0, 2 * (lower + (upper - lower) * acceptance) / drift), acceptance=acceptance)


def _bound_score(bound: float, model: SprtModel, pair_variance: float) -> float:
    if model == SprtModel.LOGISTIC:
        return expected_score(bound)
    return 0.5 + bound / NORMALISED_ELO_SCALE * math.sqrt(2 * pair_variance)
