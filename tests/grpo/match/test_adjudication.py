"""Adjudication: undecided games go to the side that stands better, seen from the right player; nothing else changes."""

from collections.abc import Callable

import chess
import pytest
from scripted_engine import ScriptedEngine

from grpo.engine.pool import EnginePool
from grpo.match.matches import UNDECIDED, End, MatchResult, PlayedGame, adjudicate

# The same but for the colours.
WHITE_TO_MOVE = "k7/8/8/8/8/1r6/8/K7 w - - 7 40"
BLACK_TO_MOVE = "k7/8/1R6/8/8/8/8/K7 b - - 7 40"

pytestmark = pytest.mark.usefixtures("no_process_left")


def game(opening: str, end: End, *, first_is_white: bool = True, moves: str = "", score: float = 0.5) -> PlayedGame:
    """Return a game that ended like this."""
    return PlayedGame(opening=opening, first_is_white=first_is_white, moves=tuple(moves.split()), end=end, score=score)


def match_of(*games: PlayedGame) -> MatchResult:
    """Return a match of these games."""
    return MatchResult(first="a", second="b", games=games)


def adjudicated_by(engine: ScriptedEngine, result: MatchResult) -> MatchResult:
    """Return the match after adjudication."""
    with EnginePool(engine.path, num_processes=1, options={}) as pool:
        return adjudicate(result, pool)


@pytest.mark.parametrize(
    ("score", "mover_score"),
    [("cp 251", 1.0), ("cp 250", 0.5), ("cp 0", 0.5), ("cp -250", 0.5), ("cp -251", 0.0), ("mate 5", 1.0), ("mate -5", 0.0)],
)
def test_a_value_above_the_threshold_wins_for_the_mover_whichever_colour_and_player_that_is(
    score: str, mover_score: float, scripted: Callable[..., ScriptedEngine]
) -> None:
    engine = scripted(scores={move: score for fen in (WHITE_TO_MOVE, BLACK_TO_MOVE) for move in map(str, chess.Board(fen).legal_moves)})
    games = [
        game(opening, end, first_is_white=white)
        for end in sorted(UNDECIDED)
        for opening in (WHITE_TO_MOVE, BLACK_TO_MOVE)
        for white in (True, False)
    ]
    result = adjudicated_by(engine, match_of(*games))
    scores = [mover_score, 1 - mover_score, 1 - mover_score, mover_score]
    assert [one.adjudicated for one in result.games] == scores * len(UNDECIDED)
    assert {one.score for one in result.games} == {0.5}, "as played"


def test_games_that_the_board_has_decided_are_not_looked_at(scripted: Callable[..., ScriptedEngine]) -> None:
    engine = scripted()
    games = [game(WHITE_TO_MOVE, end, score=score) for end in sorted(set(End) - UNDECIDED) for score in (0.0, 1.0)]
    result = adjudicated_by(engine, match_of(*games))
    assert engine.searches() == []
    assert result.games == tuple(games)


def test_the_final_position_is_searched_once_afresh_to_the_depth_with_a_new_count_of_fifty_moves(
    scripted: Callable[..., ScriptedEngine],
) -> None:
    engine = scripted()
    moves = "a1a2 b3b4 a2a1"
    drawn = [game(WHITE_TO_MOVE, End.FIFTY_MOVES, moves=moves, first_is_white=white) for white in (True, False)]
    result = adjudicated_by(engine, match_of(*drawn))
    board = chess.Board(WHITE_TO_MOVE)
    for move in moves.split():
        board.push_uci(move)
    board.halfmove_clock = 0
    assert [(search["fen"], search["limit"], search["is_fresh"]) for search in engine.searches()] == [(board.fen(), "depth 10", True)]
    first, second = (one.adjudicated for one in result.games)
    assert first is not None
    assert second == 1 - first, "one value, seen from both players"


def test_a_search_that_fails_leaves_the_draw_and_is_counted(scripted: Callable[..., ScriptedEngine]) -> None:
    board = chess.Board(WHITE_TO_MOVE)
    board.halfmove_clock = 0
    engine = scripted(
        {"kind": "none", "fen": board.fen(), "times": 99},
        scores={move.uci(): "cp 900" for move in chess.Board(BLACK_TO_MOVE).legal_moves},
        positions=[fen.replace(" 7 ", " 0 ") for fen in (WHITE_TO_MOVE, BLACK_TO_MOVE)],
    )
    games = [game(opening, End.PLY_CAP) for opening in (WHITE_TO_MOVE, WHITE_TO_MOVE, BLACK_TO_MOVE, BLACK_TO_MOVE)]
    result = adjudicated_by(engine, match_of(*games))
    assert [one.adjudicated for one in result.games] == [None, None, 0.0, 0.0]
    assert result.facts()["adjudicated"]["num_failed"] == 2
    assert result.pair_scores(adjudicated=True) == [0.5, 0.0]
