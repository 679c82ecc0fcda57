"""Ratings from games: Bradley and Terry's model on the logistic Elo scale, with errors that come from pairs of games."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

ELO_PER_NAT: Final = 400 / math.log(10)
"""Elo points of one unit of log-odds: 173.7."""
_MAX_STEPS: Final = 200
_LONGEST_STEP: Final = 2.0  # In nats; Newton's own, from far off, would overshoot.
_TOLERANCE: Final = 1e-10

Vector = NDArray[np.float64]
"""P numbers, one for each free rating; or K, one for each meeting."""
Matrix = NDArray[np.float64]
"""[P, P], covariances; or [K, P], which free rating counts in which meeting, with its sign."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedPairs:
    """The pairs of games that two players played, seen from the first."""

    first: int
    second: int
    pair_scores: tuple[float, ...]
    """Mean score of the two games of each opening, in [0, 1]; a win is 1, a draw 0.5."""

    def __post_init__(self) -> None:
        """Refuse a meeting without a game, or of a player with itself."""
        if not self.pair_scores or self.first == self.second:
            raise ValueError(
                f"players {self.first} and {self.second}, {len(self.pair_scores)} pairs: a meeting is of two, over a pair or more"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratings:
    """Ratings with the covariance of their errors; player 0 is 0 by definition, and has no error."""

    elo: Vector
    """[players]."""
    covariance: Matrix
    """[players, players], Elo squared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rating:
    """One player's rating against opponents whose ratings are given."""

    elo: float
    standard_error: float
    """That of its games, as if the opponents' ratings were exact."""
    weights: tuple[float, ...]
    """How far the rating moves when an opponent's is one point higher; they sum to 1."""


def fit_ratings(num_players: int, meetings: Sequence[PlayedPairs]) -> Ratings:
    """Return the likeliest ratings of players 0 .. n - 1 with the covariance of their errors, player 0 being 0.

    Bradley and Terry, Biometrika 39 (1952), with a draw as half a win. Plain likelihood has no maximum when every game was won, and rates
    too wide with few games; Firth's (Biometrika 80, 1993) has neither fault. It adds one drawn game for each free rating, spread over the
    meetings by their leverage: with one meeting, log((w + 1/2) / (l + 1/2)). The covariance is a sandwich: a meeting's variance is that
    of its pairs, not of games, after adding one pair lost and one won, as `grpo.statistics.intervals` does.

    Raises ValueError when some players never met the others, directly or by way of others.
    """
    _refuse_strangers(num_players, meetings)
    design = np.zeros((len(meetings), num_players))
    for row, meeting in enumerate(meetings):
        design[row, meeting.first], design[row, meeting.second] = 1, -1
    fitted, covariance, _ = _fit(design[:, 1:], np.zeros(len(meetings)), meetings)
    return Ratings(elo=np.concatenate([[0.0], fitted]) * ELO_PER_NAT, covariance=np.pad(covariance, (1, 0)) * ELO_PER_NAT**2)


def rate_against(opponents: Sequence[float], pair_scores: Sequence[Sequence[float]]) -> Rating:
    """Return the likeliest rating of a player, by the same model, from its pairs against opponents of known ratings.

    Args:
        opponents: their ratings in Elo.
        pair_scores: for each of them the player's scores, by pairs.

    Raises ValueError when there is no opponent, or one without a pair.
    """
    if not opponents:
        raise ValueError("no opponents, no rating: play at least one")
    meetings = [PlayedPairs(first=0, second=1 + index, pair_scores=tuple(scores)) for index, scores in enumerate(pair_scores)]
    offset = -np.array([rating for rating, _ in zip(opponents, pair_scores, strict=True)]) / ELO_PER_NAT
    fitted, covariance, information = _fit(np.ones((len(meetings), 1)), offset, meetings)
    return Rating(
        elo=float(fitted[0]) * ELO_PER_NAT,
        standard_error=math.sqrt(covariance[0, 0]) * ELO_PER_NAT,
        weights=tuple(float(share) for share in information / information.sum()),
    )


def _fit(design: Matrix, offset: Vector, meetings: Sequence[PlayedPairs]) -> tuple[Vector, Matrix, Vector]:
    """Return the free ratings in nats that are likeliest, their covariance, and each meeting's information."""
    num_games = np.array([2 * len(meeting.pair_scores) for meeting in meetings])
    won = np.array([2 * sum(meeting.pair_scores) for meeting in meetings])
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
        raise AssertionError("a penalised likelihood with one finite maximum was not climbed")
    spread = information**2 * np.array([_log_odds_variance(meeting.pair_scores) for meeting in meetings])
    return fitted, bread @ (design.T @ (spread[:, None] * design)) @ bread, information


def _log_odds_variance(pair_scores: Sequence[float]) -> float:
    """Return the variance of the log-odds of a mean of pairs, by the delta method, after one pair lost and one won."""
    padded = np.array([*pair_scores, 0.0, 1.0])
    centre = float(padded.mean())
    return float(padded.var()) / len(padded) / (centre * (1 - centre)) ** 2


def _refuse_strangers(num_players: int, meetings: Sequence[PlayedPairs]) -> None:
    known = {0}
    for _ in range(num_players):
        known |= {player for meeting in meetings for player in (meeting.first, meeting.second) if known & {meeting.first, meeting.second}}
    strangers = sorted(set(range(num_players)) - known)
    if strangers:
        raise ValueError(
            f"players {', '.join(map(str, strangers))} never met player 0, directly or by way of others, so that nothing says how strong"
            " they are: add meetings that join them"
        )
