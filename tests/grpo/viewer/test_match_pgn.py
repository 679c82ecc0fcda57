"""PGN of matches: what was played comes back from two readers, and nothing in a name can break it."""

from dataclasses import replace
from datetime import date

import chess
import chess.engine
import chess.pgn
import pytest
from doubles import some_boards
from made_games import games_in

from grpo.base.seeding import numpy_stream
from grpo.engine.answers import Score
from grpo.match.matches import End, MatchResult, PlayedGame, play_match
from grpo.match.players import RandomPlayer
from grpo.viewer.annotations import AnnotatedGame, MoveNote
from grpo.viewer.pgn import event_pgn

DAY = date(2026, 11, 21)
OPENINGS = [
    chess.STARTING_FEN,
    *(board.fen() for board in some_boards(3, max_plies=40)),
    "4k3/8/8/8/8/8/8/R3K3 w Q - 98 70",
    "8/P6k/8/8/8/8/p6K/8 b - - 0 50",
]


@pytest.fixture(scope="module")
def result() -> MatchResult:
    first, second = (RandomPlayer(numpy_stream(0, side)) for side in ("first", "second"))
    second.name = "random, nodes 50"  # type: ignore[misc]
    played = play_match(first, second, OPENINGS, max_plies=60)
    values = (0.0, 0.5, 1.0)
    games = tuple(
        replace(game, adjudicated=values[index % 3]) if game.end == End.PLY_CAP else game for index, game in enumerate(played.games)
    )
    return replace(played, games=games, is_adjudicated=True)


def white_score(result: str) -> float:
    return {"1-0": 1.0, "0-1": 0.0, "1/2-1/2": 0.5}[result]


def test_moves_openings_players_and_results_as_played_and_adjudicated_come_back(result: MatchResult) -> None:
    text = event_pgn([result], event="a match", seed=3, played_on=DAY, facts={"Run": "42"})
    assert "\n50... " in text
    games = games_in(text)
    assert len(games) == len(result.games) == 2 * len(OPENINGS)
    assert {played.adjudicated for played in result.games} == {0.0, 0.5, 1.0, None}
    for played, game in zip(result.games, games, strict=True):
        assert tuple(move.uci() for move in game.mainline_moves()) == played.moves
        assert game.board().fen() == played.opening
        headers = game.headers
        assert white_score(headers["Result"]) == (played.score if played.first_is_white else 1 - played.score)
        if played.adjudicated is None:
            assert "AdjudicatedResult" not in headers
        else:
            assert white_score(headers["AdjudicatedResult"]) == (played.adjudicated if played.first_is_white else 1 - played.adjudicated)
        names = (result.first, result.second) if played.first_is_white else (result.second, result.first)
        assert (headers["White"], headers["Black"]) == names
        assert headers["Termination"] == played.end.value
        assert (headers["Event"], headers["Seed"], headers["Date"], headers["Run"]) == ("a match", "3", "2026.11.21", "42")


def one_game(moves: str, *, first: str = "a", opening: str = chess.STARTING_FEN) -> MatchResult:
    game = PlayedGame(opening=opening, first_is_white=True, moves=tuple(moves.split()), end=End.PLY_CAP, score=0.5)
    return MatchResult(first=first, second="b", games=(game,))


@pytest.mark.parametrize("name", ['the "best" policy, 50 %; {x}', "ends with a backslash\\"])
def test_no_name_can_break_a_header(name: str) -> None:
    text = event_pgn([one_game("e2e4 e7e5", first=name)], event=name, seed=0, played_on=DAY, facts={"Run": name})
    [theirs] = games_in(text)
    assert theirs.headers["White"].replace('\\"', '"').replace("\\\\", "\\") == name, "python-chess does not undo the standard's escapes"
    assert [move.uci() for move in theirs.mainline_moves()] == ["e2e4", "e7e5"]


def test_a_chosen_game_has_a_tag_and_comments() -> None:
    opening = "7k/8/6K1/8/8/8/8/5Q2 b - - 9 40"
    result = one_game("h8g8 f1f7 g8h8 f7f5", opening=opening)
    known = MoveNote(probabilities={"h8g8": 1.0}, scores={"h8g8": Score(-2, is_mate=True)})
    quiet = MoveNote(probabilities={}, scores={"f1f7": Score(100), "f1f5": Score(150)})
    mate, mates = (MoveNote(probabilities={move: 0.25}, scores={move: Score(n, is_mate=True)}) for move, n in (("g8h8", 1), ("f7f5", 3)))
    notes = (known, quiet, mate, mates)
    game = AnnotatedGame(why="shortest loss", notes=notes)
    text = event_pgn([result], event="e", seed=0, played_on=DAY, annotated={0: game})
    assert '[Chosen "shortest loss"]' in text
    moves = " ".join(text.split("\n\n")[1].split())
    assert moves == (
        "40... Kg8 {[%eval #2] probability 100.0%, win 0.0%} 41. Qf7+ {[%eval 1.00] win 59.1%}"
        " 41... Kh8 {probability 25.0%, win 100.0%} 42. Qf5 {[%eval #2] probability 25.0%, win 100.0%} 1/2-1/2"
    ), "Lichess: 100 centipawns are 59.1 %; the engine's mate in 3 is one in 2 after its first move, and after a mating move none is left"
    [their] = games_in(text)
    evals = [chess.engine.Mate(2), chess.engine.Cp(100), chess.engine.Mate(2)]
    assert [node.eval().white() for node in their.mainline() if node.eval()] == evals  # type: ignore[union-attr]
