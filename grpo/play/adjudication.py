"""Games that were drawn for lack of technique, decided by what their final positions are worth."""

from dataclasses import replace

import chess

from grpo.engine.answers import EngineAnswer, EngineError
from grpo.engine.pool import EnginePool, Query
from grpo.play.matches import UNDECIDED, Adjudication, MatchResult, PlayedGame


def adjudicate(result: MatchResult, pool: EnginePool, *, depth: int, centipawns: int) -> MatchResult:
    """Return the match with a second score: undecided games are won by the side that stands more than `centipawns` better.

    Undecided are draws by repetition, fifty moves or the ply cap; stalemates and draws for want of material stay draws. The final position
    is searched with its count of the fifty moves set to 0: what is asked is who would win who knew how, and close to the fiftieth move a
    search finds every position drawn. A forced mate counts as any number of centipawns. The scores as played remain beside.

    Args:
        result: the match as it was played.
        pool: engines that value positions, without MultiPV.
        depth: of the search.
        centipawns: the threshold; a value that equals it is a draw.

    Raises EngineError when several searches in a row fail; a game whose single search failed stays a draw, and is counted.
    """
    finals = {game: _final_board(game) for game in result.games if game.end in UNDECIDED}
    # Deterministic players come to the same end many times.
    distinct = {board.fen(): board for board in finals.values()}
    answers = dict(
        zip(distinct, pool.search([Query(fen=fen, limit=f"depth {depth}", board=board) for fen, board in distinct.items()]), strict=True)
    )
    scores = {game: _first_score(game, board, answers[board.fen()], centipawns) for game, board in finals.items()}
    num_failed = sum(game in scores and scores[game] is None for game in result.games)
    return replace(
        result,
        games=tuple(replace(game, adjudicated=scores.get(game)) for game in result.games),
        adjudication=Adjudication(depth=depth, centipawns=centipawns, num_failed=num_failed),
    )


def _final_board(game: PlayedGame) -> chess.Board:
    board = chess.Board(game.opening)
    for move in game.moves:
        board.push(chess.Move.from_uci(move))
    board.halfmove_clock = 0
    return board.copy(stack=False)


def _first_score(game: PlayedGame, board: chess.Board, answer: EngineAnswer | EngineError, centipawns: int) -> float | None:
    """Return the first player's score, None when the engine failed."""
    if isinstance(answer, EngineError):
        return None
    value, is_mate, _ = answer.scores.get(answer.best_move) or next(iter(answer.scores.values()))
    if not is_mate and abs(value) <= centipawns:
        return 0.5
    mover_is_first = (board.turn == chess.WHITE) == game.first_is_white
    return float((value > 0) == mover_is_first)
