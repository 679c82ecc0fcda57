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

from grpo.actions import action_id, legal_action_ids
from grpo.config import ValuesConfig
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
    return mate_band + (1 - 2 * mate_band) / (1 + math.exp(-logistic_slope * score.value))


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

    The pool must have been made with `engine_options(config)`. Boards must have a legal move.
    """
    for start in range(0, len(boards), _POSITIONS_PER_BATCH):
        batch = boards[start : start + _POSITIONS_PER_BATCH]
        answers = pool.search([Query(fen=board.fen(), limit=f"depth {depth}") for board in batch])
        for board, answer in zip(batch, answers, strict=True):
            yield answer if isinstance(answer, EngineError) else _table(board, answer, config)


def _table(board: chess.Board, answer: Answer, config: ValuesConfig) -> ValueTable | EngineError:
    ids = {action_id(chess.Move.from_uci(move), board.turn): move for move in answer.scores}
    if sorted(ids) != legal_action_ids(board):
        return EngineError(f"{board.fen()}: the engine scored {len(ids)} moves that are not the legal ones")
    moves = tuple(ids[index] for index in sorted(ids))
    scores = [answer.scores[move] for move in moves]
    return ValueTable(
        moves=moves,
        win_probabilities=np.array(
            [win_probability(score, logistic_slope=config.logistic_slope, mate_band=config.mate_band) for score in scores],
            dtype=np.float32,
        ),
        centipawns=tuple(None if score.is_mate else score.value for score in scores),
        mate_in=tuple(score.value if score.is_mate else None for score in scores),
    )
