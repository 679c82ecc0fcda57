"""Elo ratings from pair scores: expected score = 1 / (1 + 10^(-rating difference / 400)).

A pair score is the mean score of an opening's two games, in [0, 1]. A pairing is all games of two players.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

ELO_PER_NAT: Final = 400 / math.log(10)  # 173.7 Elo for one nat of log-odds.
_MAX_STEPS: Final = 200
_LONGEST_STEP: Final = 2.0  # Nats. Longer Newton steps overshoot.
_TOLERANCE: Final = 1e-10

# P free (fitted) ratings, K pairings.
Vector = NDArray[np.float64]  # [P] or [K].
Matrix = NDArray[np.float64]  # [P, P] covariances, or [K, P] design matrix: 1 for a pairing's first player, -1 for the second.


@dataclass(frozen=True, kw_only=True, slots=True)
class Rating:
    elo: float
    standard_error: float  # The opponents' ratings count as exact.
    weights: tuple[float, ...]
    """Change of `elo` per Elo of each opponent's rating."""


def fit_ratings(num_players: int, pair_scores: Mapping[tuple[int, int], Sequence[float]]) -> tuple[Vector, Matrix]:
    """Return maximum-likelihood ratings in Elo, [players], and the covariance of their errors in Elo squared, [players, players].

    The model is Bradley and Terry's (Biometrika 39, 1952); a draw is half a win. The likelihood would have no maximum if a player won every
    game. Firth's penalty (Biometrika 80, 1993) therefore adds one drawn game per fitted rating, spread over the pairings by leverage
    (influence on the fit). The covariance is a sandwich estimate (from the observed variance of the pair scores), with one lost and one won
    pair added to each pairing.

    `pair_scores`: (first, second) -> pair scores of the first player. The pairings must connect all players. Player 0 has rating 0.
    """
    design = np.zeros((len(pair_scores), num_players))
    for row, (first, second) in enumerate(pair_scores):
        design[row, first], design[row, second] = 1, -1
    fitted, covariance, _ = _fit(design[:, 1:], np.zeros(len(pair_scores)), list(pair_scores.values()))
    return np.concatenate([[0.0], fitted]) * ELO_PER_NAT, np.pad(covariance, (1, 0)) * ELO_PER_NAT**2


def rate_against(opponents: Sequence[float], pair_scores: Sequence[Sequence[float]]) -> Rating:
    """Return a player's rating by the model of `fit_ratings`. `opponents`: known ratings in Elo. `pair_scores`: per opponent."""
    fitted, covariance, information = _fit(np.ones((len(pair_scores), 1)), -np.array(opponents) / ELO_PER_NAT, pair_scores)
    weights = tuple(float(share) for share in information / information.sum())
    return Rating(elo=float(fitted[0]) * ELO_PER_NAT, standard_error=math.sqrt(covariance[0, 0]) * ELO_PER_NAT, weights=weights)


def rating_difference(opponents: Sequence[float], first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Rating:
    """Return the first player's rating minus the second's. The error comes from the score differences by opening (delta method).

    Both must have played the same openings in the same order. Two openings are added per opponent: each player wins one opening, and the
    other player loses the opening. So the error is above 0 even if all scores are equal.
    """
    one, two = rate_against(opponents, first), rate_against(opponents, second)
    variance = 0.0
    for scores_1, scores_2, weight_1, weight_2 in zip(first, second, one.weights, two.weights, strict=True):
        differences = weight_1 * _log_odds([*scores_1, 0.0, 1.0]) - weight_2 * _log_odds([*scores_2, 1.0, 0.0])
        variance += _variance_of_mean(differences)
    weights = tuple(weight_1 - weight_2 for weight_1, weight_2 in zip(one.weights, two.weights, strict=True))
    return Rating(elo=one.elo - two.elo, standard_error=math.sqrt(variance) * ELO_PER_NAT, weights=weights)


def _fit(design: Matrix, offset: Vector, pair_scores: Sequence[Sequence[float]]) -> tuple[Vector, Matrix, Vector]:
    """Return the free ratings in nats [P], their covariance [P, P], and each pairing's Fisher information [K].

    `offset` [K] is the known part of each pairing's rating difference, in nats.
    """
    num_games = np.array([2 * len(scores) for scores in pair_scores])
    points = np.array([2 * sum(scores) for scores in pair_scores])
    fitted = np.full(design.shape[1], -offset.mean())
    for _ in range(_MAX_STEPS):
        chances = 1 / (1 + np.exp(-(offset + design @ fitted)))
        information = num_games * chances * (1 - chances)
        bread = np.linalg.inv(design.T @ (information[:, None] * design))  # Outer factor of the sandwich.
        added = information * np.einsum("kp,pq,kq->k", design, bread, design)  # Drawn games that Firth's penalty adds.
        step = bread @ (design.T @ (points - num_games * chances + added * (0.5 - chances)))
        longest = float(np.abs(step).max())
        fitted = fitted + step * min(1.0, _LONGEST_STEP / max(longest, _TOLERANCE))
        if longest < _TOLERANCE:
            break
    else:
        raise AssertionError("Newton's method did not converge, although the penalized likelihood has one finite maximum")
    spread = information**2 * np.array([_variance_of_mean(_log_odds([*scores, 0.0, 1.0])) for scores in pair_scores])
    return fitted, bread @ (design.T @ (spread[:, None] * design)) @ bread, information


def _log_odds(padded: Sequence[float]) -> Vector:
    """Return log-odds in nats, linearized at the mean score m, without a constant: scores / (m (1 - m))."""
    scores = np.array(padded)
    center = float(scores.mean())
    return scores / (center * (1 - center))


def _variance_of_mean(values: Vector) -> float:
    return float(values.var()) / len(values)
