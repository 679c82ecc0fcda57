"""A champion's games in words."""

from collections.abc import Mapping

import pytest

from grpo.match.ladder import BaselineReport, Placement, Rung, RungMatch
from grpo.match.matches import MatchReport
from grpo.match.selection import Selection
from grpo.match.strength import strength_in_words
from grpo.statistics.intervals import paired_interval

RUNGS = [Rung(nodes=nodes, random_share=share) for nodes, share in ((1, 1), (1, 0.15), (1, 0), (300, 0))]
RANDOM, DILUTED, ONE_NODE, STRONG = (rung.name for rung in RUNGS)


def match(wins: int, draws: int, losses: int) -> MatchReport:
    games = [1.0] * wins + [0.5] * draws + [0.0] * losses
    pairs = [(first + second) / 2 for first, second in zip(games[::2], games[1::2], strict=True)]
    return MatchReport.model_construct(score=paired_interval(pairs), wins=wins, draws=draws, losses=losses)


def place(**matches: MatchReport) -> Placement:
    games = tuple(RungMatch.model_construct(rung=rung, match=met) for rung, met in matches.items())
    return Placement.model_construct(games=games)


def told(
    *,
    champion: Mapping[str, MatchReport] | None,
    start: Mapping[str, MatchReport],
    start_on_ladder: Mapping[str, MatchReport] | None = None,
) -> str:
    """Return the words about a champion, or about a start that stays champion if `champion` is None."""
    decision = Selection.model_construct(
        promoted=champion is not None,
        ladder=None if champion is None else place(**champion),
        ladder_initial=None if start_on_ladder is None else place(**start_on_ladder),
    )
    return strength_in_words(decision, BaselineReport.model_construct(matches=dict(start), ladder=place()), RUNGS)


def test_the_games_of_a_default_run_in_words() -> None:
    champion = {ONE_NODE: match(173, 150, 187), DILUTED: match(332, 93, 85)}
    start = {RANDOM: match(80, 0, 0), ONE_NODE: match(2, 31, 47)}
    assert told(champion=champion, start=start) == (
        "The champion beats Stockfish at 1 node with 15 % random moves (won 332, drawn 93, lost 85) and is not shown to differ from"
        " Stockfish at 1 node (173/150/187). Its start, before GRPO, always beats a random mover (won 80, drawn 0, lost 0) and"
        " loses to Stockfish at 1 node (2/31/47)."
    )


def test_a_start_that_stays_champion_is_told_by_its_largest_match_against_each_opponent_weakest_first() -> None:
    start = {RANDOM: match(77, 3, 0), ONE_NODE: match(0, 0, 4)}
    assert told(champion=None, start=start, start_on_ladder={STRONG: match(0, 0, 1_512), ONE_NODE: match(0, 6, 10)}) == (
        "The champion beats a random mover (won 77, drawn 3, lost 0), loses to Stockfish at 1 node (0/6/10) and always loses to"
        " Stockfish at 300 nodes (0/0/1,512)."
    )


@pytest.mark.parametrize(
    ("games", "verb"),
    [
        ((30, 0, 0), "always beats"),
        ((28, 0, 0), "beats"),
        ((31, 1, 0), "beats"),
        ((0, 0, 28), "loses to"),
        ((0, 0, 30), "always loses to"),
        ((40, 20, 4), "beats"),
        ((20, 24, 20), "is not shown to differ from"),
        ((2, 0, 0), "is not shown to differ from"),  # One pair shows nothing.
    ],
)
def test_always_needs_every_one_of_30_games_and_beats_needs_an_interval_beyond_even(games: tuple[int, int, int], verb: str) -> None:
    counts = "won {}, drawn {}, lost {}".format(*games)
    assert told(champion=None, start={RANDOM: match(*games)}) == f"The champion {verb} a random mover ({counts})."


def test_without_games_nothing_is_said() -> None:
    assert told(champion={}, start={}) == ""
