"""Elo ladder: opponents from a random mover to Stockfish, rated by games against each other, and the placement of a player on it.

Ratings are Elo above the random mover. Each rung plays only the next two rungs below it, because results of distant pairs are all alike and
carry no information. Errors therefore add up along the ladder: the interval of a rung's rating is wide, that of its gap to the next is not.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from grpo.base.documents import Document
from grpo.engine.pool import EnginePool
from grpo.match.matches import MatchReport, MatchResult, whole_match
from grpo.settings.tree import EvaluationConfig
from grpo.statistics.intervals import REPEATED_Z, Z95, Estimate, Unit, normal_interval
from grpo.statistics.ratings import Matrix, Rating, Vector, fit_ratings, rate_against, rating_difference

if TYPE_CHECKING:  # It imports torch, and the pages of results read ladders without that.
    from grpo.match.players import Player

MIN_INFORMATIVE_SCORE, MAX_INFORMATIVE_SCORE = 0.2, 0.8
"""Scores outside these bounds carry little information: near 0 and 1, a hundred Elo are a few games."""
LADDER_NOTE: Final = (
    "Elo above a random mover. Intervals (95 %) come from pairs of games. Each rung met its next two neighbors only, so that errors add up"
    " along the ladder: gaps between neighbors are known better than distances from the random mover."
)


class Rung(Document):
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

    def player(self, pool: EnginePool, rng: np.random.Generator) -> "Player":
        """Return the opponent; its random moves come from `rng`."""
        from grpo.match.players import DilutedPlayer, EnginePlayer, RandomPlayer

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


class RatedRung(Rung):
    """An opponent of the ladder with its rating."""

    rating: Estimate
    """Elo above the first rung."""
    gap: Estimate | None
    """Elo above the rung below; the first rung has none."""


class Ladder(Document):
    """Rungs with their ratings and the covariance of the ratings' errors."""

    rungs: tuple[RatedRung, ...]
    covariance: tuple[tuple[float, ...], ...]
    """[rungs, rungs], Elo squared."""

    @classmethod
    def of(cls, rungs: Sequence[Rung], ratings: Vector, covariance: Matrix) -> "Ladder":
        """Return the ladder with these ratings, [rungs], in Elo above the first rung, and the covariance of their errors."""

        def elo(rung: int, above: int) -> Estimate:
            weights = np.zeros(len(rungs))
            weights[rung] += 1
            weights[above] -= 1
            return normal_interval(float(ratings[rung] - ratings[above]), _standard_error(weights, covariance))

        rated = (
            RatedRung(**dict(rung), rating=elo(index, 0), gap=elo(index, index - 1) if index else None) for index, rung in enumerate(rungs)
        )
        return cls(rungs=tuple(rated), covariance=covariance.tolist())

    @property
    def ratings(self) -> Vector:
        """[rungs], Elo above the first rung, which is 0."""
        return np.array([rung.rating.value for rung in self.rungs])

    def standard_error(self, rungs: Sequence[int], weights: Sequence[float]) -> float:
        """Return the standard error of a weighted sum of these rungs' ratings."""
        of_all = np.zeros(len(self.rungs))
        of_all[list(rungs)] = weights
        return _standard_error(of_all, np.array(self.covariance))


def _standard_error(weights: Vector, covariance: Matrix) -> float:
    return math.sqrt(max(0.0, float(weights @ covariance @ weights)))


def rate_rungs(rungs: Sequence[Rung], pair_scores: Mapping[tuple[int, int], Sequence[float]]) -> Ladder:
    """Return the ladder with ratings fitted to the rungs' games.

    Args:
        rungs: The first one has rating 0 by definition.
        pair_scores: (one, other) -> scores of the first-named, by pairs.
    """
    return Ladder.of(rungs, *fit_ratings(len(rungs), pair_scores))


class Meeting(Document):
    """A match between two rungs."""

    first: str
    second: str
    expected: float
    """The first rung's score by the ratings: if `match` differs much, one number does not describe these two players."""
    match: MatchReport


class LadderReport(Ladder):
    """The report of `calibrate`."""

    engine: str
    note: str = LADDER_NOTE
    """How to read the ratings."""
    meetings: tuple[Meeting, ...]


Reach = Literal["within", "below", "above", "between"]
"""Whether the ladder has rungs close enough to a player to measure its strength."""
_WARNINGS: Final[dict[Reach, str]] = {
    "within": "",
    "below": "; weaker than the ladder can tell: even the lowest rung wins too often",
    "above": "; stronger than the ladder can tell: even the highest rung loses too often, add nodes to evaluation.ladder_nodes",
    "between": "; no score between 0.2 and 0.8: add a rung between these to evaluation.ladder_fractions or ladder_nodes",
}
"""Words that a rating's text adds."""


class RungMatch(Document):
    """A match against a rung, from the rated player's side."""

    rung: str
    rung_rating: float
    match: MatchReport


class Placement(Document):
    """A player's rating in Elo above the random mover, and the matches it comes from."""

    rating: Estimate
    """Rating with the rungs' ratings taken as exact: for comparing players on the same ladder."""
    rating_of_all: Estimate
    """The same rating with the errors of the rungs' ratings included."""
    reach: Reach
    probes: tuple[RungMatch, ...]
    """A few pairs that located the nearest rungs; they do not enter the rating."""
    games: tuple[RungMatch, ...]
    """The games against the nearest rungs, the weaker first; the rating comes from these."""

    @property
    def text(self) -> str:
        """The rating as one line of text."""
        names = " and ".join(f"{part.rung} ({part.match.score.value:.3f})" for part in self.games)
        rating, pairs = self.rating.text(Unit.ELO, suffix=" Elo"), self.games[0].match.score.num_pairs
        return f"{rating}, {pairs} pairs each against {names}{_WARNINGS[self.reach]}"

    @property
    def num_games(self) -> int:
        """Number of games that the rating comes from."""
        return sum(2 * part.match.score.num_pairs for part in self.games)


class BaselineReport(Document):
    """The report of `baseline`: strength of the pretrained policy before GRPO."""

    heldout: dict[str, float]
    """Metric -> value on held-out boards."""
    matches: dict[str, MatchReport]
    """Opponent's name -> match."""
    ladder: Placement


@dataclass(frozen=True, kw_only=True, slots=True)
class RungGames:
    """The games against one rung, from the rated player's side."""

    rung: int
    result: MatchResult

    @property
    def score(self) -> float:
        """Return the mean score, as played out."""
        return self.result.interval().value

    @property
    def is_informative(self) -> bool:
        """Return whether the score is neither near 0 nor near 1."""
        return MIN_INFORMATIVE_SCORE <= self.score <= MAX_INFORMATIVE_SCORE


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedGames:
    """The games that place a player; see `Placement`."""

    probes: tuple[RungGames, ...]
    games: tuple[RungGames, ...]
    z: float
    """Standard errors on each side of the intervals."""

    def placement(self, ladder: Ladder) -> Placement:
        """Return the player's place on the ladder on which it was placed."""
        rating = _rating(ladder, self.games)
        error_of_all = math.hypot(rating.standard_error, ladder.standard_error([part.rung for part in self.games], rating.weights))
        probes, games = (tuple(_rung_match(ladder, part) for part in parts) for parts in (self.probes, self.games))
        return Placement(
            rating=normal_interval(rating.elo, rating.standard_error, z=self.z),
            rating_of_all=normal_interval(rating.elo, error_of_all, z=self.z),
            reach=_reach(ladder, self.games),
            probes=probes,
            games=games,
        )


def _rung_match(ladder: Ladder, part: RungGames) -> RungMatch:
    return RungMatch(rung=ladder.rungs[part.rung].name, rung_rating=float(ladder.ratings[part.rung]), match=part.result.report())


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
"""Plays each opening with both colors against a rung, and returns the games from the rated player's side."""


def place_on_ladder(
    players: Sequence[PlayRung], ladder: Ladder, openings: Sequence[str], config: EvaluationConfig
) -> tuple[PlacedGames, ...]:
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
    by_rating = _by_rating(ladder)
    probes = [_probe(play, ladder, openings, config.num_probe_pairs) for play in players]
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
        games = [tuple(RungGames(rung=rung, result=whole_match(parts)) for rung, parts in of_player.items()) for of_player in played]
        placed = tuple(PlacedGames(probes=tuple(one), games=other, z=z) for one, other in zip(probes, games, strict=True))
        difference = ladder_difference(ladder, placed[0], placed[-1], adjudicated=False)  # One player differs from itself by 0.
        if difference.low > 0 or difference.high < 0:
            break
    return placed


def ladder_difference(ladder: Ladder, first: PlacedGames, second: PlacedGames, *, adjudicated: bool) -> Estimate:
    """Return the first player's rating less the second's in Elo, with a 95 % interval that is paired by opening.

    It is valid at whichever look play stopped, as played and as adjudicated. The rungs' errors, which nearly cancel, are included.
    Adjudicated games are rated against the rungs' ratings as played.

    Args:
        ladder: The one that both were placed on.
        first: A player's games.
        second: Another player's games, by the same call of `place_on_ladder`.
        adjudicated: Whether games count as adjudicated, not as played.
    """
    assert [part.rung for part in first.games] == [part.rung for part in second.games], "placed together"
    rungs = [part.rung for part in first.games]
    scores = [[part.result.pair_scores(adjudicated=adjudicated) for part in player.games] for player in (first, second)]
    found = rating_difference([float(ladder.ratings[rung]) for rung in rungs], *scores)
    return normal_interval(found.elo, math.hypot(found.standard_error, ladder.standard_error(rungs, found.weights)), z=first.z)


def _probe(play: PlayRung, ladder: Ladder, openings: Sequence[str], num_probe_pairs: int) -> list[RungGames]:
    """Return the games of the binary search for a player's level, on the first openings."""
    by_rating, unused_openings = _by_rating(ladder), iter(openings)
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


def _rating(ladder: Ladder, games: Sequence[RungGames]) -> Rating:
    return rate_against([float(ladder.ratings[part.rung]) for part in games], [part.result.pair_scores() for part in games])


def _reach(ladder: Ladder, games: Sequence[RungGames]) -> Reach:
    if any(part.is_informative for part in games):
        return "within"
    by_rating = _by_rating(ladder)
    if any(part.rung == by_rating[0] and part.score < MIN_INFORMATIVE_SCORE for part in games):
        return "below"
    if any(part.rung == by_rating[-1] and part.score > MAX_INFORMATIVE_SCORE for part in games):
        return "above"
    return "between"


def _by_rating(ladder: Ladder) -> list[int]:
    """Return the rungs, weakest first."""
    return [int(index) for index in np.argsort(ladder.ratings, kind="stable")]
