"""Elo ladder: rates engine opponents (rungs) by games against each other, then other players by games against rungs.

The rungs go from a random mover to Stockfish without random moves. Each rung plays only the next two rungs below, because it would nearly
always beat weaker rungs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final, Literal

from grpo.base.documents import Document
from grpo.engine.pool import EnginePool
from grpo.match.matches import MatchReport, MatchResult, whole_match
from grpo.settings.tree import EvaluationConfig
from grpo.statistics.intervals import REPEATED_Z, Z95, Estimate, Unit, normal_interval

if TYPE_CHECKING:  # Commands that read reports start without NumPy.
    import numpy as np

    from grpo.match.players import Player
    from grpo.statistics.ratings import Matrix, Rating, Vector

MIN_INFORMATIVE_SCORE, MAX_INFORMATIVE_SCORE = 0.2, 0.8
"""Outside these scores, a few games change the rating by a hundred Elo."""
_MAX_NEIGHBOR_SCORE: Final = 0.95  # Above, Firth's penalty lowers the gap.
LADDER_NOTE: Final = (
    "Elo above a random mover, with 95 % intervals over pairs of games. Each rung played only the next two rungs, so errors add up: gaps"
    " between neighbors are known better than distances from the random mover. Gaps above some 500 Elo come out too low."
)


class Rung(Document):
    nodes: int  # Searched positions per move.
    random_share: float  # Probability of a random move.

    @property
    def name(self) -> str:
        if self.random_share == 1:
            return "random"
        return f"stockfish-{self.nodes}-nodes" + (f", {100 * self.random_share:g} % random" if self.random_share else "")

    @property
    def words(self) -> str:
        if self.random_share == 1:
            return "a random mover"
        engine = f"Stockfish at {self.nodes:,} node{'' if self.nodes == 1 else 's'}"
        return engine + (f" with {100 * self.random_share:g} % random moves" if self.random_share else "")

    def player(self, pool: EnginePool, rng: "np.random.Generator") -> "Player":
        from grpo.match.players import DilutedPlayer, EnginePlayer, RandomPlayer

        if self.random_share == 1:
            return RandomPlayer(rng)
        engine = EnginePlayer(pool, limit=f"nodes {self.nodes}", name=f"stockfish-{self.nodes}-nodes")
        return DilutedPlayer(engine, random_fraction=self.random_share, rng=rng) if self.random_share else engine


BASELINE_RUNGS: Final = {"random": Rung(nodes=1, random_share=1), "engine": Rung(nodes=1, random_share=0)}
"""Opponents of the pretrained policy in the step `baseline`."""


def make_rungs(config: EvaluationConfig) -> tuple[Rung, ...]:
    """Return the rungs, weakest first."""
    diluted = [Rung(nodes=config.ladder_nodes[0], random_share=share) for share in config.ladder_fractions]
    return (*diluted, *(Rung(nodes=nodes, random_share=0.0) for nodes in config.ladder_nodes))


def ladder_pairings(num_rungs: int) -> list[tuple[int, int]]:
    """Return the pairs of rungs that play, as (stronger, weaker) indices."""
    return [(upper, lower) for upper in range(num_rungs) for lower in (upper - 1, upper - 2) if lower >= 0]


class RatedRung(Rung):
    rating: Estimate  # Elo above the first rung.
    gap: Estimate | None  # Elo above the next lower rung; None for the first rung.


class Ladder(Document):
    rungs: tuple[RatedRung, ...]
    covariance: tuple[tuple[float, ...], ...]  # [rungs, rungs] of the ratings' errors, Elo squared.

    @classmethod
    def of(cls, rungs: Sequence[Rung], ratings: "Vector", covariance: "Matrix") -> "Ladder":
        import numpy as np

        def elo(rung: int, base: int) -> Estimate:
            weights = np.zeros(len(rungs))
            weights[rung] += 1  # `rung` may equal `base`.
            weights[base] -= 1
            return normal_interval(float(ratings[rung] - ratings[base]), _standard_error(weights, covariance))

        rated = (
            RatedRung(**dict(rung), rating=elo(index, 0), gap=elo(index, index - 1) if index else None) for index, rung in enumerate(rungs)
        )
        return cls(rungs=tuple(rated), covariance=covariance.tolist())

    @property
    def ratings(self) -> tuple[float, ...]:
        return tuple(rung.rating.value for rung in self.rungs)

    def standard_error(self, rungs: Sequence[int], weights: Sequence[float]) -> float:
        """Return the standard error, in Elo, of the weighted sum of these rungs' ratings."""
        import numpy as np

        all_weights = np.zeros(len(self.rungs))
        all_weights[list(rungs)] = weights
        return _standard_error(all_weights, np.array(self.covariance))


def _standard_error(weights: "Vector", covariance: "Matrix") -> float:
    return math.sqrt(max(0.0, float(weights @ covariance @ weights)))


def rate_rungs(rungs: Sequence[Rung], pair_scores: Mapping[tuple[int, int], Sequence[float]]) -> Ladder:
    """`pair_scores`: (index of a rung, index of its opponent) -> the rung's pair scores."""
    from grpo.statistics.ratings import fit_ratings

    return Ladder.of(rungs, *fit_ratings(len(rungs), pair_scores))


def wide_gaps(rungs: Sequence[Rung], pair_scores: Mapping[tuple[int, int], Sequence[float]]) -> list[str]:
    """Return a warning for each two neighbors too far apart."""
    scores = {(rungs[upper - 1], rungs[upper]): fmean(pair_scores[upper, upper - 1]) for upper in range(1, len(rungs))}
    return [
        f"{upper.name} scored {score:.2f} against {lower.name}, so their gap and all ratings above are too low: add a rung between them to"
        " evaluation.ladder_fractions or ladder_nodes"
        for (lower, upper), score in scores.items()
        if score > _MAX_NEIGHBOR_SCORE
    ]


class Meeting(Document):
    first: str
    second: str
    expected: float  # First rung's score that the ratings predict.
    match: MatchReport


class LadderReport(Ladder):
    """Report of `calibrate`."""

    engine: str
    note: str = LADDER_NOTE
    meetings: tuple[Meeting, ...]


Reach = Literal["within", "below", "above", "between"]
"""`within`: the player's score against a nearest rung is from 0.2 to 0.8. Otherwise the player is below, above or between the rungs."""
_WARNINGS: Final[dict[Reach, str]] = {
    "within": "",
    "below": "; too weak for the ladder: even the lowest rung wins too often",
    "above": "; too strong for the ladder: even the highest rung loses too often, add nodes to evaluation.ladder_nodes",
    "between": "; no score between 0.2 and 0.8: add a rung between the two rungs to evaluation.ladder_fractions or ladder_nodes",
}


class RungMatch(Document):
    rung: str
    rung_rating: float
    match: MatchReport  # From the rated player's side.


class Placement(Document):
    """A player's rating in Elo above the random mover."""

    rating: Estimate  # Without the rungs' errors, to compare players of one ladder.
    rating_of_all: Estimate  # With the rungs' errors.
    reach: Reach
    probes: tuple[RungMatch, ...]  # For a first rating.
    games: tuple[RungMatch, ...]  # Against the two nearest rungs, weaker first.

    @property
    def text(self) -> str:
        names = " and ".join(f"{games.rung} ({games.match.score.value:.3f})" for games in self.games)
        rating, pairs = self.rating.text(Unit.ELO, suffix=" Elo"), self.games[0].match.score.num_pairs
        return f"{rating}, {pairs} pairs each against {names}{_WARNINGS[self.reach]}"

    @property
    def num_games(self) -> int:
        return sum(2 * games.match.score.num_pairs for games in self.games)


class BaselineReport(Document):
    """Report of `baseline`."""

    heldout: dict[str, float]  # Metric -> value on held-out boards.
    matches: dict[str, MatchReport]  # Opponent's name -> match.
    ladder: Placement


@dataclass(frozen=True, kw_only=True, slots=True)
class RungGames:
    rung: int  # Index into `Ladder.rungs`.
    result: MatchResult

    @property
    def score(self) -> float:
        return self.result.interval().value

    @property
    def is_informative(self) -> bool:
        return MIN_INFORMATIVE_SCORE <= self.score <= MAX_INFORMATIVE_SCORE


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedGames:
    probes: tuple[RungGames, ...]
    games: tuple[RungGames, ...]
    z: float  # Half-width of the difference's interval in standard errors.

    def placement(self, ladder: Ladder) -> Placement:
        rating = _rating(ladder, self.games)
        ladder_error = ladder.standard_error([games.rung for games in self.games], rating.weights)
        return Placement(
            rating=normal_interval(rating.elo, rating.standard_error),
            rating_of_all=normal_interval(rating.elo, math.hypot(rating.standard_error, ladder_error)),
            reach=_reach(ladder, self.games),
            probes=tuple(_rung_match(ladder, games) for games in self.probes),
            games=tuple(_rung_match(ladder, games) for games in self.games),
        )


def _rung_match(ladder: Ladder, games: RungGames) -> RungMatch:
    return RungMatch(rung=ladder.rungs[games.rung].name, rung_rating=ladder.ratings[games.rung], match=games.result.report())


def num_openings_to_place(num_players: int, config: EvaluationConfig) -> int:
    num_probes = len(make_rungs(config)).bit_length()  # A binary search needs at most so many.
    half_widths, size = _parts(num_players, config)
    return num_probes * config.num_probe_pairs + 2 * len(half_widths) * size


def _parts(num_players: int, config: EvaluationConfig) -> tuple[tuple[float, ...], int]:
    """Return the interval's half-width (in standard errors) after each part of the games, and the openings of a part per rung."""
    return (REPEATED_Z, config.num_rung_pairs) if num_players > 1 else ((Z95,), -(-config.num_rung_pairs // 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class LadderPairing:
    player: int  # From 0.
    rung: Rung
    openings: Sequence[str]  # FENs.


PlayPairings = Callable[[Sequence[LadderPairing]], Sequence[MatchResult]]
"""Plays the pairings; the results are from the players' side."""


def place_on_ladder(
    num_players: int, play: PlayPairings, ladder: Ladder, openings: Sequence[str], config: EvaluationConfig
) -> tuple[PlacedGames, ...]:
    """Rate one or two players.

    - Probes (short matches) give each player a first rating, by a binary search over the rungs.
    - All players then meet the two rungs nearest to the mean of the first ratings. Only these games give the final ratings.
    - `evaluation.num_rung_pairs` sets the number of openings. Two players play the same openings.
    """
    assert len(openings) >= num_openings_to_place(num_players, config)
    num_probe_pairs = config.num_probe_pairs
    probes = [list[RungGames]() for _ in range(num_players)]
    while asked := [(player, rung) for player, games in enumerate(probes) if (rung := _next_probe(ladder, games)) is not None]:
        # All players probe with the same openings.
        part, openings = openings[:num_probe_pairs], openings[num_probe_pairs:]
        results = play([LadderPairing(player=player, rung=ladder.rungs[rung], openings=part) for player, rung in asked])
        for (player, rung), result in zip(asked, results, strict=True):
            probes[player].append(RungGames(rung=rung, result=result))
    mean_rating = sum(_rating(ladder, games).elo for games in probes) / num_players
    by_rating = _by_rating(ladder)
    nearest = sorted(by_rating, key=lambda index: abs(ladder.ratings[index] - mean_rating))[:2]
    rungs = sorted(nearest, key=by_rating.index)  # The weaker rung first.
    played = [{rung: list[MatchResult]() for rung in rungs} for _ in probes]
    half_widths, size = _parts(num_players, config)
    for z in half_widths:
        parts = {rung: openings[number * size : (number + 1) * size] for number, rung in enumerate(rungs)}
        openings = openings[len(rungs) * size :]
        asked = [(player, rung) for rung in rungs for player in range(num_players)]
        results = play([LadderPairing(player=player, rung=ladder.rungs[rung], openings=parts[rung]) for player, rung in asked])
        for (player, rung), result in zip(asked, results, strict=True):
            played[player][rung].append(result)
        games = [tuple(RungGames(rung=rung, result=whole_match(parts)) for rung, parts in by_rung.items()) for by_rung in played]
        placed = tuple(PlacedGames(probes=tuple(before), games=rated, z=z) for before, rated in zip(probes, games, strict=True))
        difference = ladder_difference(ladder, placed[0], placed[-1], adjudicated=False)  # A single player differs from itself by 0.
        if difference.low > 0 or difference.high < 0:
            break
    return placed


def ladder_difference(ladder: Ladder, first: PlacedGames, second: PlacedGames, *, adjudicated: bool) -> Estimate:
    """Return the first player's rating minus the second's in Elo, with a 95 % interval paired by opening.

    Both come from one call of `place_on_ladder`. The interval is valid after either part, and includes the errors of the rungs' ratings,
    which nearly cancel.
    """
    from grpo.statistics.ratings import rating_difference

    rungs = [games.rung for games in first.games]
    assert rungs == [games.rung for games in second.games], "the players were placed against different rungs"
    scores = [[games.result.pair_scores(adjudicated=adjudicated) for games in player.games] for player in (first, second)]
    rating = rating_difference([ladder.ratings[rung] for rung in rungs], *scores)
    return normal_interval(rating.elo, math.hypot(rating.standard_error, ladder.standard_error(rungs, rating.weights)), z=first.z)


def _next_probe(ladder: Ladder, probes: Sequence[RungGames]) -> int | None:
    """Return the next rung of a player's binary search, or None at its end."""
    by_rating = _by_rating(ladder)
    below, above = -1, len(by_rating)
    for games in probes:
        if games.is_informative:
            return None
        place = by_rating.index(games.rung)
        below, above = (place, above) if games.score > 0.5 else (below, place)
    return by_rating[(below + above) // 2] if above - below > 1 else None


def _rating(ladder: Ladder, games: Sequence[RungGames]) -> "Rating":
    from grpo.statistics.ratings import rate_against

    return rate_against([ladder.ratings[met.rung] for met in games], [met.result.pair_scores() for met in games])


def _reach(ladder: Ladder, games: Sequence[RungGames]) -> Reach:
    if any(met.is_informative for met in games):
        return "within"
    by_rating = _by_rating(ladder)
    if any(met.rung == by_rating[0] and met.score < MIN_INFORMATIVE_SCORE for met in games):
        return "below"
    if any(met.rung == by_rating[-1] and met.score > MAX_INFORMATIVE_SCORE for met in games):
        return "above"
    return "between"


def _by_rating(ladder: Ladder) -> list[int]:
    """Return indices, lowest rating first. Fitted ratings can be in another order than the rungs."""
    return sorted(range(len(ladder.rungs)), key=ladder.ratings.__getitem__)
