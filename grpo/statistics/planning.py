"""How many games a question takes, and what the games at hand could answer.

Sample sizes by the normal approximation, n = (z_level + z_power)^2 variance / difference^2, counted in pairs, for the two games of an
opening are one observation. The interval that verdicts use adds a pair lost and a pair won, so it takes some pairs more
(`Certainty.is_padded`). Below some thirty pairs all this is a rough guide.
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
"""Nobody plays the billions of games that a smaller difference takes."""
_NORMAL: Final = NormalDist()
_OVERSHOOT: Final = 0.5826
"""A random walk passes a bound by about this many standard deviations of a step (D. Siegmund, Sequential Analysis, 1985, chapter X)."""
_BISECTIONS: Final = 60


class PlanError(PlainError, ValueError):
    """The question cannot be asked so; the message says which number is impossible, and what is possible."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumptions:
    """What a plan takes for granted of the games; raises PlanError where a number is no chance or no correlation."""

    draw_rate: float
    """Share of drawn games."""
    pair_correlation: float
    """Between the scores of the two games of an opening; 0 takes them for independent, openings that favour a colour push it below."""

    def __post_init__(self) -> None:
        if not 0 <= self.draw_rate < 1:
            raise PlanError(f"a draw rate of {self.draw_rate} is impossible or leaves nothing to tell: give one in [0, 1)")
        if not -1 < self.pair_correlation <= 1:
            raise PlanError(f"a pair correlation of {self.pair_correlation} is impossible: give one above -1, at most 1")

    @property
    def highest_score(self) -> float:
        """Return the expected score of a player that loses no game."""
        return 1 - self.draw_rate / 2

    def pair_variance(self, score: float) -> float:
        """Return the variance of a pair's mean score.

        Of a game it is s (1 - s) - d / 4: wins s - d / 2 of the time, draws d.

        Raises PlanError when so many draws leave no room for the score.
        """
        if not 1 - self.highest_score <= score <= self.highest_score:
            room = f"{1 - self.highest_score:.3f} to {self.highest_score:.3f}"
            raise PlanError(f"a score of {score:.3f} is impossible at {self.draw_rate:.0%} draws, which leave {room}: lower the draw rate")
        return max(0.0, score * (1 - score) - self.draw_rate / 4) * (1 + self.pair_correlation) / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Certainty:
    """How sure a plan is to be; raises PlanError for what are no chances."""

    level: float
    """One-sided chance to claim a difference that is not there."""
    probability: float
    """Chance to show a difference that is there (the power)."""
    is_padded: bool
    """By the interval of `grpo.statistics.intervals.paired_interval`; else by the textbook's, which trusts a handful of pairs too much."""

    def __post_init__(self) -> None:
        if not 0 < self.level < 0.5:
            raise PlanError(f"a level of {self.level} is no test: give a one-sided error between 0 and 0.5, such as 0.025")
        if not self.level < self.probability < 1:
            raise PlanError(
                f"a probability of {self.probability} cannot be planned for: give one above the level ({self.level}) and below 1"
            )

    def pairs(self, variance: float, difference: float) -> int:
        """Return how many pairs of this variance show a mean this far above one half."""
        z_level, z_power = _NORMAL.inv_cdf(1 - self.level), _NORMAL.inv_cdf(self.probability)
        textbook = max(1, math.ceil((z_level + z_power) ** 2 * variance / difference**2))
        if not self.is_padded:
            return textbook

        def shows(num_pairs: int) -> bool:
            # The padded sum of deviations from one half, and the standard error that goes with it, at the deviations expected.
            size, excess = num_pairs + 2, num_pairs * difference
            spread = (num_pairs * (variance + difference**2) + 0.5) - excess**2 / size
            return excess - z_power * math.sqrt(num_pairs * variance) >= z_level * math.sqrt(spread)

        return next(num_pairs for num_pairs in itertools.count(textbook) if shows(num_pairs))


def games_head_to_head(elo_difference: float, *, assumed: Assumptions, certainty: Certainty) -> int:
    """Return how many games between two players show a difference of this size, an even number.

    >>> assumed = Assumptions(draw_rate=0.3, pair_correlation=0.0)
    >>> games_head_to_head(30, assumed=assumed, certainty=Certainty(level=0.05, probability=0.8, is_padded=False))
    578

    Raises PlanError when the difference is below `SMALLEST_ELO`, or larger than the draws leave room for.
    """
    _refuse_no_difference(elo_difference)
    score = expected_score(elo_difference)
    return 2 * certainty.pairs(assumed.pair_variance(score), score - 0.5)


def games_per_arm(elo_difference: float, *, around_score: float, assumed: Assumptions, certainty: Certainty) -> int:
    """Return how many games each of two players must play against a common opponent to show their difference, an even number.

    The two stand half of the difference above and below the rating of `around_score`. Twice the variance and half of the visible
    difference: it takes about three times the games of a match between the two and, when the opponent is too strong, far more. Always by
    the textbook's interval, for ours is of one match.

    Raises PlanError for a score outside [0.001, 0.999], and as `games_head_to_head`.
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
    """Return the smallest Elo difference that so many games head to head show with that certainty; None where even +1,000 is not.

    Raises PlanError for fewer than two games, for they are no pair.
    """
    if num_games < 2:
        raise PlanError(f"{num_games} games are no pair: give at least 2")
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
    """Return a hair less, so that rounding never puts the score of a player without losses beyond what is possible."""
    return difference * (1 - 1e-9)


@dataclass(frozen=True, kw_only=True, slots=True)
class SprtLength:
    """What to expect of a sequential test."""

    num_games: float
    """On average."""
    acceptance: float
    """Chance that it accepts."""


def expected_sprt(test: Sprt, *, true_elo: float, assumed: Assumptions) -> SprtLength:
    """Return how long a test takes on average, looked at after every pair, and how often it accepts.

    By A. Wald (Sequential Analysis, 1947): the log-likelihood ratio walks with drift m = (s1 - s0) (s - (s0 + s1) / 2) / var and variance
    v = (s1 - s0)^2 / var a pair. From 0 it reaches b before a with chance (1 - e^(ha)) / (e^(hb) - e^(ha)), h = -2 m / v. Both bounds are
    moved outwards by what a walk in steps passes them by, which Wald neglects.

    Raises PlanError when the draws leave no room for `true_elo`, or the bounds are too close to tell apart.
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
    if abs(tilt) * (upper - lower) < 1e-6:  # No drift: the same formulas' limit.
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
