"""The ladder: its pairings and ratings; a player is placed where it belongs, or reported as out of reach."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest
from made_selections import simulated

from grpo.match.ladder import (
    Ladder,
    LadderPairing,
    PlacedGames,
    Placement,
    Rung,
    RungGames,
    ladder_difference,
    ladder_pairings,
    make_rungs,
    num_openings_to_place,
    place_on_ladder,
    rate_rungs,
    wide_gaps,
)
from grpo.match.matches import End, MatchResult, PlayedGame
from grpo.settings.tree import EvaluationConfig
from grpo.statistics.intervals import REPEATED_Z, Z95
from grpo.statistics.ratings import rate_against, rating_difference

CONFIG = EvaluationConfig(ladder_fractions=(1.0, 0.6, 0.2), ladder_nodes=(5, 70), num_rung_pairs=40)
RUNGS = make_rungs(CONFIG)


# Rungs.


def test_rungs_go_from_a_random_mover_by_diluted_ones_to_ever_more_nodes() -> None:
    assert [(rung.nodes, rung.random_share) for rung in RUNGS] == [(5, 1.0), (5, 0.6), (5, 0.2), (5, 0.0), (70, 0.0)]
    assert [rung.name for rung in RUNGS[:2]] == ["random", "stockfish-5-nodes, 60 % random"]
    assert [rung.player(cast("Any", None), np.random.default_rng(0)).name for rung in RUNGS] == [rung.name for rung in RUNGS]


def test_the_interval_of_a_gap_worked_by_hand() -> None:
    covariance = np.diag([0.0, 400.0, 900.0, 900.0, 900.0])
    covariance[1, 2] = covariance[2, 1] = 300.0
    ladder = Ladder.of(RUNGS, TRUE, covariance)
    # Variances 400 and 900 that share 300: 700 are left.
    gap, rating = ladder.rungs[2].gap, ladder.rungs[2].rating
    assert gap is not None
    assert (gap.value, gap.low, gap.high) == pytest.approx((190, 190 - Z95 * 700**0.5, 190 + Z95 * 700**0.5))
    assert (rating.value, rating.low, rating.high) == pytest.approx((420, 420 - Z95 * 30, 420 + Z95 * 30))


@pytest.mark.parametrize(("pairs", "tells"), [([1, 0, 0, 0, 0], True), ([1, 1, 1, 1, 0], True), ([0.75, 0, 0, 0, 0], False)])
def test_a_score_of_a_fifth_still_tells(pairs: list[float], tells: bool) -> None:
    assert RungGames(rung=1, result=match_of([str(number) for number in range(5)], pairs)).is_informative is tells


# Ratings of rungs.

TRUE = np.array([0.0, 230.0, 420.0, 700.0, 900.0])


def ladder_of(rng: np.random.Generator, num_pairs: int) -> Ladder:
    return rate_rungs(
        RUNGS, {(one, other): simulated(rng, TRUE[one] - TRUE[other], num_pairs) for one, other in ladder_pairings(len(RUNGS))}
    )


def test_neighbors_too_far_apart_for_a_rating_are_named_with_the_remedy() -> None:
    scores = {(1, 0): [0.95] * 12, (2, 1): [1.0] * 11 + [0.5], (2, 0): [1.0] * 12, (3, 2): [0.7] * 12, (3, 1): [1.0] * 12}
    [warning] = wide_gaps(RUNGS[:4], scores)
    assert warning.startswith(f"{RUNGS[2].name} scored 0.96 against {RUNGS[1].name}")
    assert "add a rung between them to evaluation.ladder_fractions or ladder_nodes" in warning
    # Won games alone look alike at 700 and at 1,400 Elo.
    assert rate_rungs(RUNGS[:2], {(1, 0): [1.0] * 12}).ratings[1] < 700


# A player's place.


@dataclass
class Simulated:
    """A player of known strength that notes opponent and opening of each game."""

    elo: float
    rng: np.random.Generator
    strengths: dict[str, float]
    played: list[tuple[str, list[str]]] = field(default_factory=list)

    def play(self, rung: Rung, openings: Sequence[str]) -> MatchResult:
        self.played.append((rung.name, list(openings)))
        return match_of(openings, simulated(self.rng, self.elo - self.strengths[rung.name], len(openings)))


def match_of(openings: Sequence[str], pair_scores: Sequence[float]) -> MatchResult:
    halves = {0.0: (0.0, 0.0), 0.25: (0.0, 0.5), 0.5: (0.5, 0.5), 0.75: (0.5, 1.0), 1.0: (1.0, 1.0)}
    games = [
        PlayedGame(opening=opening, first_is_white=first_is_white, moves=(), end=End.CHECKMATE, score=score)
        for opening, pair in zip(openings, pair_scores, strict=True)
        for first_is_white, score in zip((True, False), halves[pair], strict=True)
    ]
    return MatchResult(first="player", second="rung", games=tuple(games))


def placed_together(ladder: Ladder, *elos: float, seed: int = 0, config: EvaluationConfig = CONFIG) -> tuple[PlacedGames, ...]:
    """Return the games that place simulated players of these strengths by the same openings, after looking at how it was done."""
    strengths = {rung.name: float(true) for rung, true in zip(RUNGS, TRUE, strict=True)}
    players = [Simulated(elo, np.random.default_rng([seed, number]), strengths) for number, elo in enumerate(elos)]
    openings = [f"opening {number}" for number in range(num_openings_to_place(len(players), config))]

    def play(pairings: Sequence[LadderPairing]) -> list[MatchResult]:
        return [players[pairing.player].play(pairing.rung, pairing.openings) for pairing in pairings]

    placed_games = place_on_ladder(len(players), play, ladder, openings, config)
    for player, placement in zip(players, placed_games, strict=True):
        used = [opening for _, part in player.played for opening in part]
        assert len(set(used)) == len(used), "each serves once"
        num_probes, num_parts = len(placement.probes), (len(player.played) - len(placement.probes)) // 2
        assert [len(part) for _, part in player.played] == [config.num_probe_pairs] * num_probes + [
            config.num_rung_pairs // (3 - len(elos))
        ] * 2 * num_parts
        rungs = [RUNGS[part.rung].name for part in (*placement.probes, *placement.games * num_parts)]
        assert [name for name, _ in player.played] == rungs
        assert player.played[num_probes:] == players[0].played[-2 * num_parts :], "the same rungs, each on its own openings"
    return placed_games


def placed(ladder: Ladder, elo: float, *, seed: int = 0, config: EvaluationConfig = CONFIG) -> Placement:
    [games] = placed_together(ladder, elo, seed=seed, config=config)
    return games.placement(ladder)


TRUTH = Ladder.of(RUNGS, TRUE, np.zeros((5, 5)))
"""A ladder without error."""


@pytest.mark.parametrize(("elo", "nearest"), [(40, (0, 1)), (300, (1, 2)), (1_000, (3, 4))])
def test_a_player_is_rated_against_the_two_rungs_that_are_nearest(elo: float, nearest: tuple[int, int]) -> None:
    placement = placed(TRUTH, elo, config=CONFIG.model_copy(update={"num_probe_pairs": 100, "num_rung_pairs": 400}))
    assert [part.rung for part in placement.games] == [RUNGS[number].name for number in nearest]
    assert [part.rung_rating for part in placement.games] == [TRUE[number] for number in nearest]
    assert placement.reach == "within"
    assert placement.rating.value == pytest.approx(elo, abs=40)


@pytest.mark.parametrize(("elo", "reach"), [(-1_500, "below"), (2_500, "above"), (800, "within")])
def test_a_player_out_of_reach_is_said_to_be_so(elo: float, reach: str) -> None:
    placement = placed(TRUTH, elo)
    assert placement.reach == reach
    words = {"below": "too weak for the ladder: even the lowest rung", "above": "too strong for the ladder: even the highest rung"}
    assert [where for where, said in words.items() if said in placement.text] == ([reach] if reach in words else [])
    assert np.isfinite([placement.rating.value, placement.rating.low, placement.rating.high]).all()


@pytest.mark.parametrize("size", [2, 8, 39])
def test_there_are_always_enough_openings(size: int) -> None:
    config = EvaluationConfig(ladder_fractions=(1.0,), ladder_nodes=tuple(range(2, size + 1)), num_probe_pairs=1, num_rung_pairs=2)
    rungs = tuple(Rung(nodes=number + 1, random_share=0) for number in range(size))
    ladder = Ladder.of(rungs, 300.0 * np.arange(size), np.zeros((size, size)))
    count = num_openings_to_place(1, config)
    left = []
    for strength in range(size + 1):  # Wins against the rungs below, loses to the others: never telling, so that the search goes on.

        def play(pairings: Sequence[LadderPairing], strength: int = strength) -> list[MatchResult]:
            return [match_of(met.openings, [float(met.rung.nodes <= strength)] * len(met.openings)) for met in pairings]

        openings = [str(number) for number in range(count)]
        [placement] = place_on_ladder(1, play, ladder, openings, config)
        assert {part.rung for part in placement.games} & {strength - 1, strength}
        assert placement.placement(ladder).reach == {0: "below", size: "above"}.get(strength, "between")
        left.append(count - len(placement.probes) - 2)
    assert min(left) == 0, "and no more than some place needs"


def test_the_rungs_of_a_player_are_found_in_the_order_of_their_ratings() -> None:
    crossed = Ladder.of(RUNGS, TRUE[[0, 2, 1, 3, 4]], np.zeros((5, 5)))  # The second rung is rated above the third.

    def play(pairings: Sequence[LadderPairing]) -> list[MatchResult]:
        return [match_of(met.openings, [0.5] * len(met.openings)) for met in pairings]

    openings = [str(number) for number in range(num_openings_to_place(1, CONFIG))]
    [placement] = place_on_ladder(1, play, crossed, openings, CONFIG)
    assert [part.rung for part in placement.probes] == [1], "the middle one"
    assert [part.rung for part in placement.games] == [2, 1], "the weaker one first"


def test_a_ladder_with_errors_makes_the_interval_from_zero_wider_and_not_that_for_comparisons() -> None:
    exact, rough = TRUTH, Ladder.of(RUNGS, TRUE, np.diag([0.0, 900.0, 900.0, 900.0, 900.0]))
    one, other = (placed(ladder, 560) for ladder in (exact, rough))
    assert one.rating == one.rating_of_all == other.rating
    assert other.rating_of_all.low < other.rating.low < other.rating.high < other.rating_of_all.high
    # Two rungs of equal weight and error 30 each: 30 / sqrt(2) more, in squares.
    width = sum(sign * ((each.high - each.value) / Z95) ** 2 for sign, each in ((1, other.rating_of_all), (-1, other.rating)))
    assert width**0.5 == pytest.approx(30 / 2**0.5, rel=0.05)


def test_the_whole_road_holds_the_truth_as_often_as_its_intervals_say() -> None:
    rng, config = np.random.default_rng(5), CONFIG.model_copy(update={"num_rung_pairs": 30})
    held, held_of_all = [], []
    for number in range(150):
        elo = float(rng.uniform(100, 850))
        exact = placed(TRUTH, elo, seed=number, config=config).rating
        held.append(exact.low <= elo <= exact.high)
        of_all = placed(ladder_of(rng, 24), elo, seed=number, config=config).rating_of_all
        held_of_all.append(of_all.low <= elo <= of_all.high)
    assert 0.90 < np.mean(held) < 0.985
    assert 0.90 < np.mean(held_of_all) < 0.985


# Two players, placed together.


def test_of_players_alike_the_rungs_errors_cancel_and_of_others_they_widen_the_interval() -> None:
    rough = Ladder.of(RUNGS, TRUE, np.diag([0.0, 1e6, 1e6, 1e6, 1e6]))
    one, other = placed_together(TRUTH, 300, 560)
    assert ladder_difference(rough, one, one, adjudicated=False) == ladder_difference(TRUTH, one, one, adjudicated=False)
    assert ladder_difference(rough, one, one, adjudicated=False).value == 0
    exact, wider = (ladder_difference(ladder, one, other, adjudicated=False) for ladder in (TRUTH, rough))
    assert (exact.value, True) == (wider.value, exact.high < wider.high)


@pytest.mark.parametrize(("elos", "looks"), [((400, 400), 2), ((440, 360), 2), ((560, 300), 1), ((300, 560), 1)])
def test_two_players_stop_at_the_first_look_that_shows_a_difference(elos: tuple[float, float], looks: int) -> None:
    one, other = placed_together(TRUTH, *elos)
    assert one.z == other.z == REPEATED_Z[looks - 1]
    assert {part.result.num_openings for place in (one, other) for part in place.games} == {40 * looks}
    rating = one.placement(TRUTH).rating
    alone = rate_against([TRUE[part.rung] for part in one.games], [part.result.pair_scores() for part in one.games])
    assert rating.high - rating.value == pytest.approx(Z95 * alone.standard_error), "only the difference is tested twice"
    found = ladder_difference(TRUTH, one, other, adjudicated=False)
    assert (found.low > 0, found.high < 0) == (elos[0] > elos[1], elos[0] < elos[1])
    scores = [[part.result.pair_scores() for part in place.games] for place in (one, other)]
    exact = rating_difference([TRUE[part.rung] for part in one.games], *scores)
    assert (found.value, found.high - found.value) == pytest.approx((exact.elo, REPEATED_Z[looks - 1] * exact.standard_error))


@pytest.mark.parametrize("elos", [(100, 800), (800, 100)])
def test_two_players_meet_the_rungs_that_are_nearest_to_the_mean_of_their_levels(elos: tuple[float, float]) -> None:
    one, other = placed_together(TRUTH, *elos, config=CONFIG.model_copy(update={"num_probe_pairs": 100}))
    assert [[part.rung for part in place.games] for place in (one, other)] == [[1, 2]] * 2


def test_the_adjudicated_difference_is_of_the_adjudicated_scores() -> None:
    def match(score: float, adjudicated: float) -> MatchResult:
        result = match_of([str(number) for number in range(20)], [score] * 20)
        games = tuple(replace(game, adjudicated=adjudicated) for game in result.games)
        return replace(result, games=games, is_adjudicated=True)

    def place(score: float, adjudicated: float) -> PlacedGames:
        return PlacedGames(probes=(), games=tuple(RungGames(rung=rung, result=match(score, adjudicated)) for rung in (1, 2)), z=Z95)

    one, other = place(0.5, 1.0), place(0.5, 0.0)
    assert ladder_difference(TRUTH, one, other, adjudicated=False).value == 0
    assert ladder_difference(TRUTH, one, other, adjudicated=True).low > 0
