"""Games worth looking at: each rule against games made for it, and notes that agree with policy and engine."""

import chess

from grpo.engine.move_values import engine_options
from grpo.engine.pool import EnginePool
from grpo.match.annotations import annotate
from grpo.match.highlights import choose_highlights
from grpo.match.matches import End, MatchResult, PlayedGame

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
    chosen = {why: index for index, why in choose_highlights(match(*games)).items()}
    assert list(chosen) == ["biggest swing", "shortest win", "shortest loss", "drawn with the largest lead", "longest win", "closest"]
    assert list(chosen.values()) == [5, 1, 3, 4, 2, 0]


def test_notes_are_the_movers_probabilities_and_the_engines_scores_of_all_legal_moves(stockfish: str) -> None:
    played = game("f2f3 e7e5 g2g4 d8h4", 0.0, first_is_white=False)

    def even(boards: list[chess.Board]) -> list[dict[str, float]]:
        return [{move.uci(): 1 / board.legal_moves.count() for move in board.legal_moves} for board in boards]

    with EnginePool(stockfish, num_processes=1, options=engine_options()) as pool:
        [noted] = annotate(match(played), (even, None), pool, depth=2).values()  # type: ignore[arg-type]
    for board, note in zip(played.boards(), noted.notes, strict=False):
        assert set(note.scores) == {move.uci() for move in board.legal_moves}
        assert bool(note.probabilities) == (board.turn == chess.BLACK)
    assert noted.notes[3].chance("d8h4") == 1.0
    assert noted.notes[3].best() == "d8h4"
    assert noted.notes[2].chance("g2g4") == 0.0, "it allows mate in one"
