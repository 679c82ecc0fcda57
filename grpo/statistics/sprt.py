"""Sequential probability ratio test (SPRT) for games: stops as soon as the result is clear, with bounded error rates.

This is the generalised SPRT: the log-likelihood ratio is sum n_i ln(p1_i / p0_i), where p0 and p1 are the maximum-likelihood
distributions over outcomes under each hypothesis. Sources: A. Wald,
Sequential Analysis (1947), for the bounds; M. Van den Bergh, Comments on Normalized Elo
(https://www.cantate.be/Fishtest/normalized_elo_practical.pdf), equations 1.2, 1.3 and section 4.1, for the two models. The conventions are
those of fastchess: a count of 0 becomes 1e-3, and the variance is that of pairs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from grpo.statistics.intervals import NORMALISED_ELO_SCALE, Outcomes, expected_score

_BISECTIONS: Final = 60
_MAX_ITERATIONS: Final = 200
_CLOSE: Final = 1e-10


class SprtModel(StrEnum):
    """The Elo scale of the test's bounds."""

    LOGISTIC = "logistic"
    """Expected score 1 / (1 + 10^(-elo / 400))."""
    NORMALISED = "normalised"
    """(Mean score - 1/2) in standard deviations of a game, times 800 / ln 10: the number of games does not depend on the draw rate."""


class SprtOutcome(StrEnum):
    """Result of the test after the games so far."""

    ACCEPT = "accept"
    """At least elo1, rather than elo0."""
    REJECT = "reject"
    """At most elo0, rather than elo1."""
    GO_ON = "go on"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sprt:
    """A test of elo0 against elo1; raises ValueError for bounds in the wrong order, or error rates that are not probabilities."""

    elo0: float
    elo1: float
    alpha: float
    """Upper bound (approximate) of the probability that a player of elo0 is accepted."""
    beta: float
    """Upper bound (approximate) of the probability that a player of elo1 is rejected."""
    model: SprtModel

    def __post_init__(self) -> None:
        if not self.elo0 < self.elo1:
            raise ValueError(f"elo0 ({self.elo0}) must be less than elo1 ({self.elo1})")
        if not (0 < self.alpha < 1 and 0 < self.beta < 1 and self.alpha + self.beta < 1):
            raise ValueError(f"alpha ({self.alpha}) and beta ({self.beta}) must be above 0, and together below 1")

    @property
    def lower(self) -> float:
        """Return the log-likelihood ratio at which elo1 is rejected, ln(beta / (1 - alpha))."""
        return math.log(self.beta / (1 - self.alpha))

    @property
    def upper(self) -> float:
        """Return the log-likelihood ratio at which elo1 is accepted, ln((1 - beta) / alpha)."""
        return math.log((1 - self.beta) / self.alpha)

    def log_likelihood_ratio(self, outcomes: Outcomes) -> float:
        """Return the log-likelihood ratio of elo1 to elo0; 0 without a game."""
        if not outcomes.total:
            return 0.0
        filled = outcomes.without_empty()
        of0, of1 = (_likeliest(filled, elo, self.model) for elo in (self.elo0, self.elo1))
        return sum(count * math.log(p1 / p0) for count, p0, p1 in zip(filled.counts, of0, of1, strict=True))

    def outcome(self, pair_scores: Sequence[float]) -> SprtOutcome:
        """Return the test's result for the mean scores of all pairs so far."""
        ratio = self.log_likelihood_ratio(Outcomes.of_pairs(pair_scores))
        if ratio >= self.upper:
            return SprtOutcome.ACCEPT
        return SprtOutcome.REJECT if ratio <= self.lower else SprtOutcome.GO_ON


def _likeliest(outcomes: Outcomes, elo: float, model: SprtModel) -> list[float]:
    """Return the maximum-likelihood distribution over outcomes at this Elo; no count may be 0."""
    observed = [count / outcomes.total for count in outcomes.counts]
    if model == SprtModel.LOGISTIC:
        return _tilted(observed, [score - expected_score(elo) for score in outcomes.scores])
    return _likeliest_at_ratio(observed, outcomes.scores, elo / NORMALISED_ELO_SCALE * math.sqrt(outcomes.games_each))


def _tilted(observed: Sequence[float], deviations: Sequence[float]) -> list[float]:
    """Return p_i = observed_i / (1 + theta d_i) with sum p_i d_i = 0: the maximum-likelihood distribution with mean deviation 0.

    The sum decreases from infinity to minus infinity between the two thetas where a denominator vanishes, so bisection always converges.
    """
    low, high = -1 / max(deviations), -1 / min(deviations)
    for _ in range(_BISECTIONS):
        theta = (low + high) / 2
        if sum(p * d / (1 + theta * d) for p, d in zip(observed, deviations, strict=True)) > 0:
            low = theta
        else:
            high = theta
    theta = (low + high) / 2
    return [p / (1 + theta * d) for p, d in zip(observed, deviations, strict=True)]


def _likeliest_at_ratio(observed: Sequence[float], scores: Sequence[float], ratio: float) -> list[float]:
    """Return the maximum-likelihood distribution whose mean is `ratio` standard deviations above one half.

    The condition is not linear in p, so it is linearised at the current p and solved repeatedly until p converges (Van den Bergh, 4.1).
    """
    found = _shifted_to_ratio(observed, scores, ratio)
    for _ in range(_MAX_ITERATIONS):
        mean, deviation = _mean_and_deviation(found, scores)
        deviations = [score - 0.5 - ratio * deviation / 2 * (1 + ((score - mean) / deviation) ** 2) for score in scores]
        if not min(deviations) < 0 < max(deviations):  # The linearised condition has no solution here; this is rare.
            found = _shifted_to_ratio(found, scores, ratio)
            continue
        previous, found = found, _tilted(observed, deviations)
        if max(abs(p - q) for p, q in zip(found, previous, strict=True)) < _CLOSE:
            break
    return found


def _shifted_to_ratio(start: Sequence[float], scores: Sequence[float], ratio: float) -> list[float]:
    """Return `start` mixed with a certain win or loss so that the condition holds; the linearised condition has a solution there."""

    def mixed(weight: float) -> list[float]:
        rest = [p * (1 - abs(weight)) for p in start]
        rest[-1 if weight > 0 else 0] += abs(weight)
        return rest

    low, high = -1.0, 1.0
    for _ in range(_BISECTIONS):
        weight = (low + high) / 2
        mean, deviation = _mean_and_deviation(mixed(weight), scores)
        if mean - 0.5 < ratio * deviation:
            low = weight
        else:
            high = weight
    return mixed(low if low > -1 else high)


def _mean_and_deviation(probabilities: Sequence[float], scores: Sequence[float]) -> tuple[float, float]:
    mean = sum(p * score for p, score in zip(probabilities, scores, strict=True))
    return mean, math.sqrt(sum(p * (score - mean) ** 2 for p, score in zip(probabilities, scores, strict=True)))
