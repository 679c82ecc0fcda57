"""The reward: a value in [0, 1] for every legal move, from MultiPV searches (which score many moves at once).

A search to depth 1 (in plies) scores all legal moves; a second search goes deeper on the best few.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import chess
import numpy as np
from numpy.typing import NDArray

from grpo.board import MAX_LEGAL_MOVES
from grpo.board.actions import ACTION_UCI, action_id, legal_action_ids
from grpo.board.draws import drawing_moves, repeating_moves
from grpo.board.encoding import mover_fen
from grpo.engine.answers import EngineAnswer, EngineError, Score
from grpo.engine.identity import EngineMissingError
from grpo.engine.pool import EnginePool, Query

LOGISTIC_SLOPE: Final = 0.003
"""Per centipawn. The curve is flatter than win probability, because a policy rewarded by win probability does not learn to finish games."""
LICHESS_SLOPE: Final = 0.00368208  # Per centipawn.
MATE_BAND: Final = 0.02  # Width of the bands for forced mates: [0, 0.02] and [0.98, 1].
HASH_MIB: Final = 1  # A small hash is cheap to clear.
NUM_DEEP: Final = 8
"""Moves of the second search. Eight give as good a best move as all, in 0.43 of the time (docs/results.md)."""
_DRAW: Final = Score(0)
_MATE: Final = Score(1, is_mate=True)
_TRIED: Final = (
    "R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1",
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
)
"""The position with the most legal moves (218), and one with castling to both sides."""


def win_chance(score: Score) -> float:
    """Return the mover's win probability by Lichess's curve (https://lichess.org/page/accuracy); a mate gives 0 or 1."""
    return float(score.value > 0) if score.is_mate else logistic(LICHESS_SLOPE * score.value)


def logistic(x: float) -> float:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return (1 + math.tanh(x / 2)) / 2


@cache
def value_of(score: Score) -> float:
    """Return the reward in [0, 1]. A nearer mate is nearer to 0 or 1."""
    if not score.is_mate:
        return MATE_BAND + (1 - 2 * MATE_BAND) * logistic(LOGISTIC_SLOPE * score.value)
    certainty = 1 - MATE_BAND * (1 - 1 / max(1, abs(score.value)))
    return certainty if score.value > 0 else 1 - certainty


def centipawns_of(values: NDArray[np.float64], *, limit: float) -> NDArray[np.float64]:
    """Invert `value_of`: return centipawns, cut to +-`limit`. A mate gives +-`limit`."""
    most = logistic(LOGISTIC_SLOPE * limit)
    chances = np.clip((values - MATE_BAND) / (1 - 2 * MATE_BAND), 1 - most, most)
    return np.log(chances / (1 - chances)) / LOGISTIC_SLOPE


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueTable:
    """Legal moves of a position, in ascending order of action id."""

    moves: tuple[str, ...]  # UCI.
    values: NDArray[np.float32]  # [len(moves)], in [0, 1] for the mover.
    scores: tuple[Score, ...]  # 0 for moves that draw or repeat a position.


def engine_options() -> dict[str, str | int]:
    return {"Hash": HASH_MIB, "MultiPV": MAX_LEGAL_MOVES}


def try_engine(path: str, *, depth: int) -> None:
    """Compute the values of two demanding positions. Raises EngineMissingError if the engine cannot."""
    with EnginePool(path, num_processes=1, options=engine_options()) as pool:
        for table in value_tables([chess.Board(fen) for fen in _TRIED], pool, depth=depth):
            if isinstance(table, EngineError):
                raise EngineMissingError(f"{path} cannot evaluate all legal moves: {table}")


def value_tables(
    boards: Sequence[chess.Board], pool: EnginePool, *, depth: int, num_deep: int = NUM_DEEP
) -> Iterator[ValueTable | EngineError]:
    """Yield each board's value table in order, or an EngineError if its search failed.

    - The `num_deep` best moves at depth 1 are searched to `depth`. Others, but mating moves, get lower scores, in the order of depth 1.
    - Positions with Black to move are mirrored (colors swapped), because an engine scores a position and its mirror differently.
    - The engine's hash is cleared before each board.
    - Moves that draw, or repeat a position of the move stack, have value 0.5.

    `pool` must have `engine_options()`. Each board needs a legal move. Raises the errors of `EnginePool.answers`.
    """
    unanswered: deque[tuple[chess.Board, list[int], dict[str, Score]]] = deque()

    def queries() -> Iterator[Query]:
        for board in boards:
            action_ids, shallow = legal_action_ids(board), dict[str, Score]()
            unanswered.append((board, action_ids, shallow))
            moves = [ACTION_UCI[chess.WHITE][index] for index in action_ids]
            yield _query(mover_fen(board), moves, depth, shallow, num_deep)

    for answer in pool.answers(queries()):
        board, action_ids, shallow = unanswered.popleft()
        yield answer if isinstance(answer, EngineError) else _table(board, action_ids, _capped(shallow, answer.scores))


def _query(fen: str, moves: Sequence[str], depth: int, shallow: dict[str, Score], num_deep: int) -> Query:
    """Return a position's search. With more than `num_deep` moves, a first search to depth 1 fills `shallow`."""
    if len(moves) <= num_deep:
        return Query(fen=fen, limit=f"depth {depth}", moves=frozenset(moves))

    def deeper(answer: EngineAnswer) -> Query:
        shallow.update(answer.scores)
        # `sorted` is stable, so of equal moves the lowest action id comes first.
        best = sorted(moves, key=lambda move: value_of(shallow[move]), reverse=True)[:num_deep]
        return Query(fen=fen, limit=f"depth {depth} searchmoves {' '.join(best)}", moves=frozenset(best))

    return Query(fen=fen, limit="depth 1", moves=frozenset(moves), then=deeper)


def _capped(shallow: Mapping[str, Score], deep: Mapping[str, Score]) -> dict[str, Score]:
    """Return the deep scores, and lower scores for other moves but mates. Depth 1 ignores the reply, so its scores can be too high."""
    scores = {move: score for move, score in shallow.items() if score == _MATE} | dict(deep)
    lowest, last_shallow = min(deep.values(), key=value_of), None
    for move in sorted((move for move in shallow if move not in scores), key=lambda move: value_of(shallow[move]), reverse=True):
        if shallow[move] != last_shallow:
            last_shallow = shallow[move]
            lowest = min(last_shallow, _next_below(lowest), key=value_of)
        scores[move] = lowest
    return scores


def _next_below(score: Score) -> Score:
    """Return the next lower score; "mated in 1", the lowest, stays."""
    if not score.is_mate:
        return Score(score.value - 1)
    return Score(score.value + 1 if score.value > 0 else min(-1, score.value + 1), is_mate=True)


def _table(board: chess.Board, action_ids: Sequence[int], scores: Mapping[str, Score]) -> ValueTable:
    drawn = {action_id(move, board.turn) for move in (*drawing_moves(board), *repeating_moves(board))}
    names, names_as_white = ACTION_UCI[board.turn], ACTION_UCI[chess.WHITE]
    in_order = tuple(_DRAW if index in drawn else scores[names_as_white[index]] for index in action_ids)
    return ValueTable(
        moves=tuple(names[index] for index in action_ids),
        values=np.array([value_of(score) for score in in_order], dtype=np.float32),
        scores=in_order,
    )
