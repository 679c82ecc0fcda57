"""A ladder of opponents from a random mover to Stockfish, rated by their own games; and where a player stands on it.

Ratings are Elo above the random mover. Each rung plays its next two neighbours and no others (far pairs end all alike and tell nothing), so
that errors add up along the ladder: a rung's interval is wide, counted from the random mover, and that of its gap to the next is not.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

import numpy as np

from grpo.engine.pool import EnginePool
from grpo.play.matches import MatchResult
from grpo.play.players import DilutedPlayer, EnginePlayer, Player, RandomPlayer
from grpo.settings.tree import LadderConfig
from grpo.statistics.intervals import Z95
from grpo.statistics.ratings import Matrix, PlayedPairs, Rating, Vector, fit_ratings, rate_against

LOWEST_TELLING, HIGHEST_TELLING = 0.2, 0.8
"""Scores beyond tell little: near 0 and 1 a hundred Elo are a few games."""
LADDER_NOTE: Final = (
    "Elo above a random mover. Intervals (95 %) come from pairs of games. Each rung met its next two neighbours only, so that errors add up"
    " along the ladder: gaps between neighbours are known better than distances from the random mover."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """An opponent: Stockfish at full strength with so many nodes a move, a share of whose moves is random."""

    nodes: int
    random_share: float
    """1 is a random mover, whatever the nodes."""

    @property
    def name(self) -> str:
        """Return what the rung is called in tables."""
        if self.random_share == 1:
            return "random"
        return f"stockfish-{self.nodes}-nodes" + (f", {100 * self.random_share:g} % random" if self.random_share else "")

    def player(self, pool: EnginePool, rng: np.random.Generator) -> Player:
        """Return the opponent, whose chance comes from `rng`."""
        if self.random_share == 1:
            return RandomPlayer(rng)
        engine = EnginePlayer(pool, limit=f"nodes {self.nodes}", name=f"stockfish-{self.nodes}-nodes")
        return DilutedPlayer(engine, share=self.random_share, rng=rng) if self.random_share else engine


def make_rungs(config: LadderConfig) -> tuple[Rung, ...]:
    """Return the rungs that the settings describe, weakest first: diluted ones, then those with ever more nodes."""
    diluted = [Rung(nodes=config.nodes[0], random_share=share) for share in config.random_fractions]
    return (*diluted, *(Rung(nodes=nodes, random_share=0.0) for nodes in config.nodes))


def meetings_of(num_rungs: int) -> list[tuple[int, int]]:
    """Return who plays whom, each rung the next two below it, as (stronger, weaker)."""
    return [(upper, lower) for upper in range(num_rungs) for lower in (upper - 1, upper - 2) if lower >= 0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """Rungs with their ratings, and the covariance of the ratings' errors."""

    rungs: tuple[Rung, ...]
    ratings: Vector
    """[rungs], Elo above the first, which is 0."""
    covariance: Matrix
    """[rungs, rungs], Elo squared."""

    def interval(self, rung: int, above: int = 0) -> tuple[float, float, float]:
        """Return how far a rung is above another, the random mover if none is named: Elo, and both ends of its 95 % interval."""
        elo = float(self.ratings[rung] - self.ratings[above])
        weights = np.zeros(len(self.rungs))
        weights[rung] += 1
        weights[above] -= 1
        half_width = Z95 * self.standard_error(weights)
        return elo, elo - half_width, elo + half_width

    def standard_error(self, weights: Vector) -> float:
        """Return the standard error of a weighted sum of the ratings."""
        return math.sqrt(max(0.0, float(weights @ self.covariance @ weights)))

    def facts(self) -> dict[str, Any]:
        """Return the ladder as plain data."""
        rows = []
        for index, rung in enumerate(self.rungs):
            rating, low, high = self.interval(index)
            gap, gap_low, gap_high = self.interval(index, max(0, index - 1))
            row = {"name": rung.name, "nodes": rung.nodes, "random_share": rung.random_share, "rating": rating, "low": low, "high": high}
            rows.append(row | ({"gap": gap, "gap_low": gap_low, "gap_high": gap_high} if index else {}))
        return {"rungs": rows, "covariance": self.covariance.tolist()}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Return the ladder that `facts` describes."""
        rows = facts["rungs"]
        return cls(
            rungs=tuple(Rung(nodes=row["nodes"], random_share=row["random_share"]) for row in rows),
            ratings=np.array([row["rating"] for row in rows]),
            covariance=np.array(facts["covariance"]),
        )


def rate_rungs(rungs: Sequence[Rung], pair_scores: Mapping[tuple[int, int], Sequence[float]]) -> Ladder:
    """Return the ladder that the rungs' games make.

    Args:
        rungs: the first is 0 by definition.
        pair_scores: (one, other) -> scores of the one, by pairs.

    Raises ValueError when a rung met no other, or when the games leave the rungs in two parts.
    """
    played = [PlayedPairs(first=one, second=other, pair_scores=tuple(scores)) for (one, other), scores in pair_scores.items()]
    ratings = fit_ratings(len(rungs), played)
    return Ladder(rungs=tuple(rungs), ratings=ratings.elo, covariance=ratings.covariance)


class Reach(StrEnum):
    """Whether the ladder has a rung that says how strong a player is."""

    WITHIN = "within"
    BELOW = "below"
    """Even the weakest rung is too strong."""
    ABOVE = "above"
    """Even the strongest rung is too weak."""
    BETWEEN = "between"
    """Too strong for one rung and too weak for the next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RungGames:
    """The games against one rung, seen from the player who is rated."""

    rung: int
    result: MatchResult

    @property
    def score(self) -> float:
        """Return the mean score, as played out."""
        return self.result.interval().score

    @property
    def is_telling(self) -> bool:
        """Return whether the score is neither near 0 nor near 1."""
        return LOWEST_TELLING <= self.score <= HIGHEST_TELLING


@dataclass(frozen=True, kw_only=True, slots=True)
class LadderPlacement:
    """Where a player stands: its rating in Elo above the random mover, and the games that say so."""

    rating: float
    low: float
    """Lower end of the 95 % interval, if the rungs' own ratings were exact: for comparisons of players on one ladder."""
    high: float
    low_of_all: float
    """The same with the errors of the ladder, counted from the random mover."""
    high_of_all: float
    reach: Reach
    probes: tuple[RungGames, ...]
    """A few pairs that only found the rungs; they are no part of the rating."""
    games: tuple[RungGames, ...]
    """Against the nearest rungs, the lower first: these make the rating."""

    def text(self, ladder: Ladder) -> str:
        """Return the rating in words."""
        names = " and ".join(f"{ladder.rungs[part.rung].name} ({part.score:.3f})" for part in self.games)
        warning = {
            Reach.WITHIN: "",
            Reach.BELOW: "; weaker than the ladder can tell: even the lowest rung wins too often",
            Reach.ABOVE: "; stronger than the ladder can tell: even the highest rung loses too often, add nodes to evaluation.ladder.nodes",
            Reach.BETWEEN: "; no score between 0.2 and 0.8: add a rung between these to evaluation.ladder",
        }[self.reach]
        pairs = self.games[0].result.interval().num_pairs
        return f"{self.rating:+.0f} Elo [{self.low:+.0f}, {self.high:+.0f}], {pairs} pairs each against {names}{warning}"


def num_openings_to_place(num_rungs: int, *, num_probe_pairs: int, num_rung_pairs: int) -> int:
    """Return how many openings `place_on_ladder` may need: a halving of the rungs, and the two nearest ones."""
    return num_rungs.bit_length() * num_probe_pairs + 2 * num_rung_pairs


def place_on_ladder(
    play: Callable[[Rung, Sequence[str]], MatchResult],
    ladder: Ladder,
    openings: Sequence[str],
    *,
    num_probe_pairs: int,
    num_rung_pairs: int,
) -> LadderPlacement:
    """Rate a player: a few pairs against the middle rung, then up or down by halves, then many against the two nearest rungs.

    Args:
        play: plays each of these openings with both colours against a rung, and returns the games as the player sees them.
        ladder: at least two rungs.
        openings: FENs, as many as `num_openings_to_place` says; each serves once.
        num_probe_pairs: openings of a probe.
        num_rung_pairs: openings against each of the nearest rungs.
    """
    waiting = iter(openings)

    def games_of(rung: int, num_pairs: int) -> RungGames:
        return RungGames(rung=rung, result=play(ladder.rungs[rung], [next(waiting) for _ in range(num_pairs)]))

    by_rating = [int(index) for index in np.argsort(ladder.ratings, kind="stable")]
    probes: list[RungGames] = []
    below, above = -1, len(by_rating)
    while above - below > 1:
        middle = (below + above) // 2
        probes.append(games_of(by_rating[middle], num_probe_pairs))
        if probes[-1].is_telling:
            break
        below, above = (middle, above) if probes[-1].score > 0.5 else (below, middle)
    guess = _rating(ladder, probes).elo
    nearest = sorted(by_rating, key=lambda index: abs(float(ladder.ratings[index]) - guess))[:2]
    games = [games_of(rung, num_rung_pairs) for rung in sorted(nearest, key=by_rating.index)]
    rating = _rating(ladder, games)
    weights = np.zeros(len(ladder.rungs))
    weights[[part.rung for part in games]] = rating.weights
    half_width = Z95 * rating.standard_error
    half_width_of_all = Z95 * math.hypot(rating.standard_error, ladder.standard_error(weights))
    return LadderPlacement(
        rating=rating.elo,
        low=rating.elo - half_width,
        high=rating.elo + half_width,
        low_of_all=rating.elo - half_width_of_all,
        high_of_all=rating.elo + half_width_of_all,
        reach=_reach(games, lowest=by_rating[0], highest=by_rating[-1]),
        probes=tuple(probes),
        games=tuple(games),
    )


def _rating(ladder: Ladder, games: Sequence[RungGames]) -> Rating:
    return rate_against([float(ladder.ratings[part.rung]) for part in games], [part.result.pair_scores() for part in games])


def _reach(games: Sequence[RungGames], *, lowest: int, highest: int) -> Reach:
    if any(part.is_telling for part in games):
        return Reach.WITHIN
    if any(part.rung == lowest and part.score < LOWEST_TELLING for part in games):
        return Reach.BELOW
    if any(part.rung == highest and part.score > HIGHEST_TELLING for part in games):
        return Reach.ABOVE
    return Reach.BETWEEN
