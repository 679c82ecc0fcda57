"""Games worth looking at: each rule against games made for it, and notes that agree with policy and engine."""

import chess
import pytest

from grpo.engine.move_values import engine_options, win_chance
from grpo.engine.pool import EnginePool
from grpo.match.annotations import annotate, positions
from grpo.match.highlights import Highlight, choose_highlights
from grpo.match.matches import End, MatchResult, PlayedGame
from grpo.settings.tree import ValuesConfig

SHUFFLE = "g1f3 g8f6 f3g1 f6g8"
# A queen stands en prise for two plies and is taken.
LOSES_QUEEN = "d2d4 e7e5 d1d3 e5d4 d3h7 h8h7"
WINS_QUEEN = "e2e4 d7d5 e4d5 d8d5 b1c3 d5e5 c3e2 e5e2 f1e2"


def game(moves: str, score: float, *, first_is_white: bool = True, opening: str = chess.STARTING_FEN) -> PlayedGame:
    return PlayedGame(opening=opening, first_is_white=first_is_white, moves=tuple(moves.split()), end=End.PLY_CAP, score=score)


def match(*games: PlayedGame) -> MatchResult:
    return MatchResult(first="a", second="b", games=games)


def test_each_rule_finds_the_game_made_for_it_from_the_first_players_side() -> None:
    games = [
        game(f"{SHUFFLE} {SHUFFLE}", 0.5),
        game(LOSES_QUEEN, 1.0, first_is_white=False),
        game(f"{LOSES_QUEEN} {SHUFFLE}", 1.0, first_is_white=False),
        game(LOSES_QUEEN, 0.0),
        game(f"{WINS_QUEEN} g8f6 g1f3 f6g8 f3g1", 0.5),
        # Two rooks for a bishop and a pawn, which takes both.
        game("e1e2 h8a1 h1h2 a1e5 e2e3 e5h2 e3e2 e8e7", 0.5, opening="4k2b/p7/8/8/8/8/8/R3K2R w - - 0 1"),
    ]
    chosen = {highlight.why: highlight.index for highlight in choose_highlights(match(*games))}
    assert list(chosen) == ["biggest swing", "shortest win", "shortest loss", "drawn with the largest lead", "longest win", "closest"]
    assert chosen["biggest swing"] == 5
    assert chosen["shortest win"] == 1
    assert chosen["longest win"] == 2
    assert chosen["shortest loss"] == 3
    assert chosen["drawn with the largest lead"] == 4
    assert chosen["closest"] == 0
    assert choose_highlights(match(*games)) == choose_highlights(match(*games))


def test_games_are_distinct_and_a_rule_without_a_game_is_made_up_for() -> None:
    games = [game(SHUFFLE, 0.5), game(SHUFFLE, 0.5), game(f"{SHUFFLE} {SHUFFLE}", 0.5), game("", 0.0)]
    assert {highlight.index for highlight in choose_highlights(match(*games))} == {0, 2}
    many = [game(f"{SHUFFLE} {first}2{first}3", 0.5) for first in "abcdefgh"]
    chosen = choose_highlights(match(*many))
    assert len({highlight.index for highlight in chosen}) == len(chosen) == 6
    assert [highlight.why for highlight in chosen[1:]] == ["next biggest swing"] * 5
    assert choose_highlights(match()) == ()


@pytest.mark.parametrize("first_is_white", [True, False])
def test_notes_are_the_movers_probabilities_and_the_engines_scores_of_all_legal_moves(stockfish: str, first_is_white: bool) -> None:
    played = game("f2f3 e7e5 g2g4 d8h4", 0.0, first_is_white=first_is_white)
    config = ValuesConfig(depth=2)

    def even(boards: list[chess.Board]) -> list[dict[str, float]]:
        return [{move.uci(): 1 / board.legal_moves.count() for move in board.legal_moves} for board in boards]

    with EnginePool(stockfish, num_processes=1, options=engine_options()) as pool:
        [noted] = annotate(match(played), [Highlight(0, "why")], policies=(even, None), pool=pool, config=config)  # type: ignore[arg-type]
    assert (noted.white, noted.black) == (("a", "b") if first_is_white else ("b", "a"))
    boards = positions(played)
    assert boards[-1].is_checkmate()
    for board, note in zip(boards, noted.notes, strict=False):
        assert set(note.scores) == {move.uci() for move in board.legal_moves}
        assert bool(note.probabilities) == ((board.turn == chess.WHITE) == first_is_white)
    assert noted.notes[3].chance("d8h4") == 1.0
    assert noted.notes[3].best() == "d8h4"
    assert noted.notes[2].chance("g2g4") == 0.0, "it allows mate in one"
    assert 0 < win_chance(noted.notes[0].scores["f2f3"]) < 1
