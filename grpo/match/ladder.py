"""Elo ladder: opponents from a random mover to Stockfish, rated by games against each other, and the placement of a player on it.

Ratings are Elo above the random mover. Each rung plays only the next two rungs below it, because results of distant pairs are all alike and
carry no information. Errors therefore add up along the ladder: the interval of a rung's rating is wide, that of its gap to the next is not.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from grpo.engine.pool import EnginePool
from grpo.match.intervals import REPEATED_Z, Z95, Estimate, Unit
from grpo.match.matches import MatchResult, joined
from grpo.match.players import DilutedPlayer, EnginePlayer, Player, RandomPlayer
from grpo.match.ratings import Matrix, Rating, Vector, fit_ratings, rate_against, rating_difference
from grpo.settings.tree import EvaluationConfig

MIN_INFORMATIVE_SCORE, MAX_INFORMATIVE_SCORE = 0.2, 0.8
"""Scores outside these bounds carry little information: near 0 and 1, a hundred Elo are a few games."""
LADDER_NOTE: Final = (
    "Elo above a random mover. Intervals (95 %) come from pairs of games. Each rung met its next two neighbours only, so that errors add up"
    " along the ladder: gaps between neighbours are known better than distances from the random mover."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """An opponent of the ladder: Stockfish at full strength with fixed nodes per move, where a fraction of moves is random."""

    nodes: int
    random_share: float
    """Fraction of random moves; 1 is a random mover, whatever the nodes."""

    @property
    def name(self) -> str:
        """Return the rung's name in tables."""
        if self.random_share == 1:
            return "random"
        return f"stockfish-{self.nodes}-nodes" + (f", {100 * self.random_share:g} % random" if self.random_share else "")

    def player(self, pool: EnginePool, rng: np.random.Generator) -> Player:
        """Return the opponent; its random moves come from `rng`."""
        if self.random_share == 1:
            return RandomPlayer(rng)
        engine = EnginePlayer(pool, limit=f"nodes {self.nodes}", name=f"stockfish-{self.nodes}-nodes")
        return DilutedPlayer(engine, random_fraction=self.random_share, rng=rng) if self.random_share else engine


def make_rungs(config: EvaluationConfig) -> tuple[Rung, ...]:
    """Return the rungs of the settings, weakest first: those with random moves, then those with more and more nodes."""
    diluted = [Rung(nodes=config.ladder_nodes[0], random_share=share) for share in config.ladder_fractions]
    return (*diluted, *(Rung(nodes=nodes, random_share=0.0) for nodes in config.ladder_nodes))


def ladder_pairings(num_rungs: int) -> list[tuple[int, int]]:
    """Return the pairings (stronger, weaker): each rung plays the next two below it."""
    return [(upper, lower) for upper in range(num_rungs) for lower in (upper - 1, upper - 2) if lower >= 0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """Rungs with their ratings and the covariance of the ratings' errors."""

    rungs: tuple[Rung, ...]
    ratings: Vector
    """[rungs], Elo above the first rung, which is 0."""
    covariance: Matrix
    """[rungs, rungs], Elo squared."""

    def interval(self, rung: int, above: int = 0) -> tuple[float, float, float]:
        """Return a rung's Elo above another (by default the random mover), and both ends of its 95 % interval."""
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
    """Return the ladder with ratings fitted to the rungs' games.

    Args:
        rungs: The first one has rating 0 by definition.
        pair_scores: (one, other) -> scores of the first-named, by pairs.
    """
    elo, covariance = fit_ratings(len(rungs), pair_scores)
    return Ladder(rungs=tuple(rungs), ratings=elo, covariance=covariance)


_WARNINGS: Final = {
    "within": "",
    "below": "; weaker than the ladder can tell: even the lowest rung wins too often",
    "above": "; stronger than the ladder can tell: even the highest rung loses too often, add nodes to evaluation.ladder_nodes",
    "between": "; no score between 0.2 and 0.8: add a rung between these to evaluation.ladder_fractions or ladder_nodes",
}
"""Whether the ladder has rungs close enough to a player to measure its strength -> what the rating's text says of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RungGames:
    """The games against one rung, from the rated player's side."""

    rung: int
    result: MatchResult

    @property
    def score(self) -> float:
        """Return the mean score, as played out."""
        return self.result.interval().score

    @property
    def is_informative(self) -> bool:
        """Return whether the score is neither near 0 nor near 1."""
        return MIN_INFORMATIVE_SCORE <= self.score <= MAX_INFORMATIVE_SCORE


@dataclass(frozen=True, kw_only=True, slots=True)
class LadderPlacement:
    """A player's rating in Elo above the random mover, and the games it comes from."""

    rating: float
    low: float
    """Lower end of the 95 % interval with the rungs' ratings taken as exact: for comparing players on the same ladder."""
    high: float
    low_of_all: float
    """Lower end of the 95 % interval with the errors of the rungs' ratings included."""
    high_of_all: float
    z: float
    """Standard errors on each side of these intervals."""
    reach: str
    """A key of `_WARNINGS`."""
    probes: tuple[RungGames, ...]
    """A few pairs that located the nearest rungs; they do not enter the rating."""
    games: tuple[RungGames, ...]
    """The games against the nearest rungs, the weaker first; the rating comes from these."""

    def text(self, ladder: Ladder) -> str:
        """Return the rating as one line of text."""
        names = " and ".join(f"{ladder.rungs[part.rung].name} ({part.score:.3f})" for part in self.games)
        pairs = self.games[0].result.interval().num_pairs
        rating = Estimate(value=self.rating, low=self.low, high=self.high).text(Unit.ELO, suffix=" Elo")
        return f"{rating}, {pairs} pairs each against {names}{_WARNINGS[self.reach]}"

    def facts(self, ladder: Ladder) -> dict[str, Any]:
        """Return the rating as plain data, with the facts of the matches that it comes from."""
        parts = {
            name: [
                {"rung": ladder.rungs[part.rung].name, "rung_rating": float(ladder.ratings[part.rung]), **part.result.facts()}
                for part in games
            ]
            for name, games in (("games", self.games), ("probes", self.probes))
        }
        ends = {name: getattr(self, name) for name in ("rating", "low", "high", "low_of_all", "high_of_all")}
        return {**ends, "reach": self.reach, "text": self.text(ladder), **parts}


def num_openings_to_place(num_players: int, config: EvaluationConfig) -> int:
    """Return the most openings that `place_on_ladder` needs: a binary search over the rungs, then the two nearest rungs."""
    num_probes = len(make_rungs(config)).bit_length()
    boundaries, size = _parts(num_players, config)
    return num_probes * config.num_probe_pairs + 2 * len(boundaries) * size


def _parts(num_players: int, config: EvaluationConfig) -> tuple[tuple[float, ...], int]:
    """Return the standard errors on each side of an interval after each part, and a part's openings a rung.

    A single player is compared with nobody: one part, of half the size.
    """
    return (REPEATED_Z, config.num_rung_pairs) if num_players > 1 else ((Z95,), -(-config.num_rung_pairs // 2))


PlayRung = Callable[[Rung, Sequence[str]], MatchResult]
"""Plays each opening with both colours against a rung, and returns the games from the rated player's side."""


def place_on_ladder(
    players: Sequence[PlayRung], ladder: Ladder, openings: Sequence[str], config: EvaluationConfig
) -> tuple[LadderPlacement, ...]:
    """Rate players: find each one's level with a binary search of a few pairs per rung, then play many pairs against the two nearest rungs.

    Two players meet the same rungs, those nearest to the mean of their levels, on the same openings: then `ladder_difference` compares
    them opening by opening. They play up to two parts of `num_rung_pairs` openings a rung, and no more once their difference as played is
    shown (`REPEATED_Z`). One player plays half a part.

    Args:
        players: How each of them, one or two, plays a rung.
        ladder: At least two rungs.
        openings: FENs, at least `num_openings_to_place` of them; each player uses each at most once.
        config: How many openings the search and a part take.
    """
    by_rating = [int(index) for index in np.argsort(ladder.ratings, kind="stable")]
    probes = [_probe(play, ladder, by_rating, openings, config.num_probe_pairs) for play in players]
    level = sum(_rating(ladder, of_player).elo for of_player in probes) / len(probes)
    nearest = sorted(by_rating, key=lambda index: abs(float(ladder.ratings[index]) - level))[:2]
    rungs = sorted(nearest, key=by_rating.index)  # The weaker first.
    unused_openings = iter(openings[config.num_probe_pairs * max(map(len, probes)) :])
    played = [{rung: list[MatchResult]() for rung in rungs} for _ in players]
    boundaries, size = _parts(len(players), config)
    for z in boundaries:
        for rung in rungs:
            part = [next(unused_openings) for _ in range(size)]
            for play, of_player in zip(players, played, strict=True):
                of_player[rung].append(play(ladder.rungs[rung], part))
        games = [[RungGames(rung=rung, result=joined(parts)) for rung, parts in of_player.items()] for of_player in played]
        placements = tuple(_placement(ladder, by_rating, *of_player, z) for of_player in zip(probes, games, strict=True))
        difference = ladder_difference(ladder, placements[0], placements[-1], adjudicated=False)
        if difference.low > 0 or difference.high < 0:
            break
    return placements


def ladder_difference(ladder: Ladder, first: LadderPlacement, second: LadderPlacement, *, adjudicated: bool) -> Estimate:
    """Return the first player's rating less the second's in Elo, with a 95 % interval that is paired by opening.

    It is valid at whichever look play stopped, as played and as adjudicated. The rungs' errors, which nearly cancel, are included.
    Adjudicated games are rated against the rungs' ratings as played.

    Args:
        ladder: The one that both were placed on.
        first: A player's placement.
        second: Another's, by the same call of `place_on_ladder`.
        adjudicated: Whether games count as adjudicated, not as played.
    """
    assert [part.rung for part in first.games] == [part.rung for part in second.games], "placed together"
    rungs = [part.rung for part in first.games]
    scores = [[part.result.pair_scores(adjudicated=adjudicated) for part in placement.games] for placement in (first, second)]
    found = rating_difference([float(ladder.ratings[rung]) for rung in rungs], *scores)
    weights = np.zeros(len(ladder.rungs))
    weights[rungs] = found.weights
    half_width = first.z * math.hypot(found.standard_error, ladder.standard_error(weights))
    return Estimate(value=found.elo, low=found.elo - half_width, high=found.elo + half_width)


def _probe(play: PlayRung, ladder: Ladder, by_rating: Sequence[int], openings: Sequence[str], num_probe_pairs: int) -> list[RungGames]:
    """Return the games of the binary search for a player's level, on the first openings."""
    unused_openings = iter(openings)
    probes: list[RungGames] = []
    below, above = -1, len(by_rating)
    while above - below > 1:
        middle = (below + above) // 2
        part = [next(unused_openings) for _ in range(num_probe_pairs)]
        probes.append(RungGames(rung=by_rating[middle], result=play(ladder.rungs[by_rating[middle]], part)))
        if probes[-1].is_informative:
            break
        below, above = (middle, above) if probes[-1].score > 0.5 else (below, middle)
    return probes


def _placement(
    ladder: Ladder, by_rating: Sequence[int], probes: Sequence[RungGames], games: Sequence[RungGames], z: float
) -> LadderPlacement:
    rating = _rating(ladder, games)
    weights = np.zeros(len(ladder.rungs))
    weights[[part.rung for part in games]] = rating.weights
    half_width = z * rating.standard_error
    half_width_of_all = z * math.hypot(rating.standard_error, ladder.standard_error(weights))
    return LadderPlacement(
        rating=rating.elo,
        low=rating.elo - half_width,
        high=rating.elo + half_width,
        low_of_all=rating.elo - half_width_of_all,
        high_of_all=rating.elo + half_width_of_all,
        z=z,
        reach=_reach(games, lowest=by_rating[0], highest=by_rating[-1]),
        probes=tuple(probes),
        games=tuple(games),
    )


def _rating(ladder: Ladder, games: Sequence[RungGames]) -> Rating:
    return rate_against([float(ladder.ratings[part.rung]) for part in games], [part.result.pair_scores() for part in games])


def _reach(games: Sequence[RungGames], *, lowest: int, highest: int) -> str:
    if any(part.is_informative for part in games):
        return "within"
    if any(part.rung == lowest and part.score < MIN_INFORMATIVE_SCORE for part in games):
        return "below"
    if any(part.rung == highest and part.score > MAX_INFORMATIVE_SCORE for part in games):
        return "above"
    return "between"
