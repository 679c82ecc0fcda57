"""Elo ratings from games: the Bradley-Terry model on the logistic Elo scale, with standard errors computed over pairs of games."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

ELO_PER_NAT: Final = 400 / math.log(10)
"""Elo points of one unit of log-odds: 173.7."""
_MAX_STEPS: Final = 200
_LONGEST_STEP: Final = 2.0  # In nats; limits Newton steps far from the maximum, which would overshoot.
_TOLERANCE: Final = 1e-10

Vector = NDArray[np.float64]
"""[P], one number per free rating, or [K], one per pairing."""
Matrix = NDArray[np.float64]
"""[P, P] covariances, or [K, P] design matrix: the sign of each free rating in each pairing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedPairs:
    """The pairs of games between two players, from the first player's side."""

    first: int
    second: int
    pair_scores: tuple[float, ...]
    """Mean score of the two games of each opening, in [0, 1]; a win is 1, a draw 0.5."""

    def __post_init__(self) -> None:
        """Refuse a pairing without a game, or of a player with itself."""
        if not self.pair_scores or self.first == self.second:
            raise ValueError(
                f"players {self.first} and {self.second}, {len(self.pair_scores)} pairs: a pairing needs two players and a pair of games"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratings:
    """Ratings with the covariance of their errors; player 0 has rating 0 by definition, without error."""

    elo: Vector
    """[players]."""
    covariance: Matrix
    """[players, players], Elo squared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rating:
    """One player's rating against opponents whose ratings are given."""

    elo: float
    standard_error: float
    """Standard error from its games, with the opponents' ratings taken as exact."""
    weights: tuple[float, ...]
    """Change of the rating per point of each opponent's rating; they sum to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingDifference:
    """One player's rating less another's, from games of both against the same opponents on the same openings."""

    elo: float
    standard_error: float
    """Standard error from the games, paired by opening, with the opponents' ratings taken as exact."""
    weights: tuple[float, ...]
    """Change of the difference per point of each opponent's rating; they sum to 0."""


def fit_ratings(num_players: int, pairings: Sequence[PlayedPairs]) -> Ratings:
    """Return the maximum-likelihood ratings of players 0 .. n - 1 with the covariance of their errors; player 0 has rating 0.

    Bradley and Terry, Biometrika 39 (1952), with a draw as half a win. The plain likelihood has no maximum if a player won every game, and
    overestimates differences with few games; Firth's penalty (Biometrika 80, 1993) avoids both. It adds one drawn game per free rating,
    spread over the pairings by their leverage: for a single pairing, log((w + 1/2) / (l + 1/2)). The covariance is a sandwich estimate in
    which a pairing's variance is that of its pairs, after adding one lost and one won pair, as in `grpo.match.intervals`.

    Raises ValueError if the pairings do not connect all players.
    """
    _refuse_unconnected(num_players, pairings)
    design = np.zeros((len(pairings), num_players))
    for row, pairing in enumerate(pairings):
        design[row, pairing.first], design[row, pairing.second] = 1, -1
    fitted, covariance, _ = _fit(design[:, 1:], np.zeros(len(pairings)), pairings)
    return Ratings(elo=np.concatenate([[0.0], fitted]) * ELO_PER_NAT, covariance=np.pad(covariance, (1, 0)) * ELO_PER_NAT**2)


def rate_against(opponents: Sequence[float], pair_scores: Sequence[Sequence[float]]) -> Rating:
    """Return a player's maximum-likelihood rating, by the same model, from its pairs against opponents of known ratings.

    Args:
        opponents: The opponents' ratings in Elo.
        pair_scores: The player's pair scores against each opponent.

    Raises ValueError if there is no opponent, or one without a pair.
    """
    if not opponents:
        raise ValueError("no opponents, no rating: play at least one")
    pairings = [PlayedPairs(first=0, second=1 + index, pair_scores=tuple(scores)) for index, scores in enumerate(pair_scores)]
    offset = -np.array([rating for rating, _ in zip(opponents, pair_scores, strict=True)]) / ELO_PER_NAT
    fitted, covariance, information = _fit(np.ones((len(pairings), 1)), offset, pairings)
    return Rating(
        elo=float(fitted[0]) * ELO_PER_NAT,
        standard_error=math.sqrt(covariance[0, 0]) * ELO_PER_NAT,
        weights=tuple(float(share) for share in information / information.sum()),
    )


def rating_difference(opponents: Sequence[float], first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> RatingDifference:
    """Return the first player's rating less the second's, both by `rate_against`, with an error that is paired by opening.

    Players on the same openings share their luck: the error is that of the difference on each opening (delta method), and not the sum of
    both players' errors. As for one player a lost and a won pair are added to each opponent; what one player loses there the other wins,
    so that the difference of equal games is 0 and does not look certain.

    Args:
        opponents: The opponents' ratings in Elo.
        first: The first player's pair scores against each opponent.
        second: The second player's pair scores, of the same openings in the same order.

    Raises ValueError if there is no opponent, one without a pair, or if the players' numbers of pairs differ.
    """
    one, other = rate_against(opponents, first), rate_against(opponents, second)
    variance = 0.0
    for one_scores, other_scores, one_weight, other_weight in zip(first, second, one.weights, other.weights, strict=True):
        if len(one_scores) != len(other_scores):
            raise ValueError(f"{len(one_scores)} and {len(other_scores)} pairs against one opponent cannot be paired by opening")
        apart = one_weight * _log_odds_of_pairs([*one_scores, 0.0, 1.0]) - other_weight * _log_odds_of_pairs([*other_scores, 1.0, 0.0])
        variance += float(apart.var()) / len(apart)
    return RatingDifference(
        elo=one.elo - other.elo,
        standard_error=math.sqrt(variance) * ELO_PER_NAT,
        weights=tuple(one_weight - other_weight for one_weight, other_weight in zip(one.weights, other.weights, strict=True)),
    )


def _fit(design: Matrix, offset: Vector, pairings: Sequence[PlayedPairs]) -> tuple[Vector, Matrix, Vector]:
    """Return the maximum-likelihood free ratings in nats, their covariance, and each pairing's Fisher information."""
    num_games = np.array([2 * len(pairing.pair_scores) for pairing in pairings])
    won = np.array([2 * sum(pairing.pair_scores) for pairing in pairings])
    fitted = np.full(design.shape[1], -offset.mean())
    for _ in range(_MAX_STEPS):
        chances = 1 / (1 + np.exp(-(offset + design @ fitted)))
        information = num_games * chances * (1 - chances)
        bread = np.linalg.inv(design.T @ (information[:, None] * design))
        added = information * np.einsum("kp,pq,kq->k", design, bread, design)
        step = bread @ (design.T @ (won - num_games * chances + added * (0.5 - chances)))
        longest = float(np.abs(step).max())
        fitted = fitted + step * min(1.0, _LONGEST_STEP / max(longest, _TOLERANCE))
        if longest < _TOLERANCE:
            break
    else:
        raise AssertionError("Newton's method did not converge, although the penalised likelihood has one finite maximum")
    spread = information**2 * np.array([_log_odds_variance(pairing.pair_scores) for pairing in pairings])
    return fitted, bread @ (design.T @ (spread[:, None] * design)) @ bread, information


def _log_odds_variance(pair_scores: Sequence[float]) -> float:
    """Return the variance of the log-odds of the mean pair score by the delta method, after adding one lost and one won pair."""
    log_odds = _log_odds_of_pairs([*pair_scores, 0.0, 1.0])
    return float(log_odds.var()) / len(log_odds)


def _log_odds_of_pairs(padded: Sequence[float]) -> Vector:
    """Return [pairs], each pair's score in units of the log-odds of the mean score (nats), by the slope at the mean."""
    scores = np.array(padded)
    centre = float(scores.mean())
    return scores / (centre * (1 - centre))


def _refuse_unconnected(num_players: int, pairings: Sequence[PlayedPairs]) -> None:
    known = {0}
    for _ in range(num_players):
        known |= {player for pairing in pairings for player in (pairing.first, pairing.second) if known & {pairing.first, pairing.second}}
    unconnected = sorted(set(range(num_players)) - known)
    if unconnected:
        raise ValueError(
            f"players {', '.join(map(str, unconnected))} are not connected with player 0 by games, so that nothing says how strong"
            " they are: add pairings that connect them"
        )
