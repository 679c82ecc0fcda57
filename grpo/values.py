"""The win probability of every legal move of a position, by one search.

Values are data: under a fixed engine, depth and cleared hash the value of a move does not depend on the policy, so that a table computed
once serves all of training. One search with as many lines as there are legal moves values all of them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import chess
import numpy as np
from numpy.typing import NDArray

from grpo.actions import action_id, action_move
from grpo.config import ValuesConfig
from grpo.encoding import mover_view
from grpo.engine import MAX_LINES, Answer, EngineError, EnginePool, Query, Score

_POSITIONS_PER_BATCH = 256


def win_probability(score: Score, *, logistic_slope: float, mate_band: float) -> float:
    """Return the chance in [0, 1] that the mover wins.

    Centipawns: band + (1 - 2 band) / (1 + exp(-slope * cp)). Mate in n: 1 - band * (1 - 1/n), so 1 for a mate on the board, and
    nearer mates are worth more. Being mated is the mirror image. Rising in the score; w(s) + w(-s) = 1.

    Stockfish's own win probability (WDL) is flat once a game is won, and a policy rewarded by it does not learn to finish: a
    small slope keeps a gradient there.
    """
    if score.is_mate:
        certainty = 1 - mate_band * (1 - 1 / max(1, abs(score.value)))
        return certainty if score.value > 0 else 1 - certainty
    # The logistic function, written so that it cannot overflow.
    return mate_band + (1 - 2 * mate_band) * (1 + math.tanh(logistic_slope * score.value / 2)) / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueTable:
    """All legal moves of one position with their values, in rising order of action id."""

    moves: tuple[str, ...]
    """UCI."""
    win_probabilities: NDArray[np.float32]
    """For the mover, shape [len(moves)]."""
    centipawns: tuple[int | None, ...]
    """The engine's own score; None for a forced mate."""
    mate_in: tuple[int | None, ...]
    """Moves to mate, negative when the mover is mated; None for a score in centipawns."""


def engine_options(config: ValuesConfig) -> dict[str, str | int]:
    """Return the UCI options under which tables are made."""
    return {"Hash": config.hash_mib, "MultiPV": MAX_LINES}


def value_tables(
    boards: Sequence[chess.Board], pool: EnginePool, config: ValuesConfig, *, depth: int
) -> Iterator[ValueTable | EngineError]:
    """Yield one table a board, in order; a board whose search failed gets the EngineError, and no value.

    The search is of the board seen from the mover's side, as the policy sees it: an engine's search knows left from right and White from
    Black, and would value a position and its colour mirror differently.

    The pool must have been made with `engine_options(config)`. Boards must have a legal move.
    """
    for start in range(0, len(boards), _POSITIONS_PER_BATCH):
        batch = boards[start : start + _POSITIONS_PER_BATCH]
        views = [mover_view(board) for board in batch]
        queries = [
            Query(fen=view.fen(), limit=f"depth {depth}", moves=frozenset(move.uci() for move in view.legal_moves)) for view in views
        ]
        for board, answer in zip(batch, pool.search(queries), strict=True):
            yield answer if isinstance(answer, EngineError) else _table(board.turn, answer, config)


def _table(turn: chess.Color, answer: Answer, config: ValuesConfig) -> ValueTable:
    by_id = sorted((action_id(chess.Move.from_uci(move), chess.WHITE), score) for move, score in answer.scores.items())
    scores = [score for _, score in by_id]
    return ValueTable(
        moves=tuple(action_move(index, turn).uci() for index, _ in by_id),
        win_probabilities=np.array(
            [win_probability(score, logistic_slope=config.logistic_slope, mate_band=config.mate_band) for score in scores],
            dtype=np.float32,
        ),
        centipawns=tuple(None if score.is_mate else score.value for score in scores),
        mate_in=tuple(score.value if score.is_mate else None for score in scores),
    )
