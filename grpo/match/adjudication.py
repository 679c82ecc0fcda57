"""Adjudication: scores undecided draws by the engine's evaluation of their final positions."""

from dataclasses import replace
from typing import Final

import chess

from grpo.engine.answers import EngineAnswer, EngineError
from grpo.engine.pool import EnginePool, Query
from grpo.match.matches import UNDECIDED, Adjudication, MatchResult, PlayedGame

DEPTH: Final = 10
CENTIPAWNS: Final = 250
"""A side that is ahead by more than this in a search of that depth has won; an equal evaluation is a draw."""


def adjudicate(result: MatchResult, pool: EnginePool) -> MatchResult:
    """Return the match with a second score, in which a side that is more than `CENTIPAWNS` better wins an undecided game.

    Undecided games are draws by repetition, by the fifty-move rule or by the ply cap; stalemate and insufficient material stay draws. The
    final position is searched with its half-move clock set to 0, because near the fiftieth move a search scores every position as a draw.
    A forced mate exceeds any number of centipawns. The scores as played are not changed.

    Args:
        result: The match as played.
        pool: Engines without MultiPV.

    Raises EngineError if several searches in a row fail; a game whose single search failed stays a draw and is counted.
    """
    finals = {game: _final_board(game) for game in result.games if game.end in UNDECIDED}
    # Deterministic players reach the same final position many times.
    distinct = {board.fen(): board for board in finals.values()}
    answers = dict(
        zip(distinct, pool.search([Query(fen=fen, limit=f"depth {DEPTH}", board=board) for fen, board in distinct.items()]), strict=True)
    )
    scores = {game: _first_score(game, board, answers[board.fen()]) for game, board in finals.items()}
    num_failed = sum(game in scores and scores[game] is None for game in result.games)
    return replace(
        result,
        games=tuple(replace(game, adjudicated=scores.get(game)) for game in result.games),
        adjudication=Adjudication(depth=DEPTH, centipawns=CENTIPAWNS, num_failed=num_failed),
    )


def _final_board(game: PlayedGame) -> chess.Board:
    board = chess.Board(game.opening)
    for move in game.moves:
        board.push(chess.Move.from_uci(move))
    board.halfmove_clock = 0
    return board.copy(stack=False)


def _first_score(game: PlayedGame, board: chess.Board, answer: EngineAnswer | EngineError) -> float | None:
    """Return the first player's score, or None if the engine failed."""
    if isinstance(answer, EngineError):
        return None
    value, is_mate = answer.scores.get(answer.best_move) or next(iter(answer.scores.values()))
    if not is_mate and abs(value) <= CENTIPAWNS:
        return 0.5
    mover_is_first = (board.turn == chess.WHITE) == game.first_is_white
    return float((value > 0) == mover_is_first)
