"""The reward: a value in [0, 1] for every legal move of a position, computed from a MultiPV search of the engine in two parts.

With a fixed engine, depth and cleared hash, a move's value does not depend on the policy. A table computed once therefore serves all of
training. A search of depth 1 with as many lines as legal moves scores all of them; the best few are then searched deeply.

From a score to a value: band + (1 - 2 band) / (1 + exp(-slope * cp)); mate in n is 1 - band * (1 - 1/n), and being mated is its mirror
image. It is increasing in the score, and symmetric between the two players.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import chess
import numpy as np
from numpy.typing import NDArray

from grpo.board.actions import ACTION_UCI, action_id, legal_action_ids
from grpo.board.draws import drawing_moves, repeating_moves
from grpo.board.encoding import mover_fen
from grpo.engine.answers import EngineAnswer, EngineError, Score
from grpo.engine.identity import EngineMissingError
from grpo.engine.pool import MAX_LINES, EnginePool, Query

LOGISTIC_SLOPE: Final = 0.003
"""Of the reward, per centipawn. Flatter than the results of games, which keeps a gradient in won and lost positions: a policy that is
rewarded by the plain win probability does not learn to finish games."""
_LICHESS_SLOPE: Final = 0.00368208
MATE_BAND: Final = 0.02
"""Forced mates have values in [1 - band, 1] (or [0, band]), the shorter the nearer to 1 (or 0). All other values lie between."""
HASH_MIB: Final = 1  # Cleared before each position: clearing a small table is cheap.
NUM_DEEP: Final = 8
"""Moves that are searched deeply. A policy learns most from the order of the best moves: by a deep judge, the best of eight at depth 5
gives away as little as that of all moves, at 0.43 of the time (docs/results.md)."""
_DRAW: Final = Score(0)
_TRIED: Final = (
    "R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1",
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
)
"""The position with the most legal moves (218), and one with castling to both sides."""


def win_chance(score: Score) -> float:
    """Return the mover's win probability as Lichess computes it from centipawns (https://lichess.org/page/accuracy); a mate is certain.

    This is for people to look at: the reward is another function of the score, see the module's docstring.
    """
    return float(score.value > 0) if score.is_mate else logistic(_LICHESS_SLOPE * score.value)


def logistic(x: float) -> float:
    """Return 1 / (1 + exp(-x)), written so that it cannot overflow."""
    return (1 + math.tanh(x / 2)) / 2


def value_of(score: Score) -> float:
    """Return the value of a move with this score; see the module's docstring."""
    if not score.is_mate:
        return MATE_BAND + (1 - 2 * MATE_BAND) * logistic(LOGISTIC_SLOPE * score.value)
    certainty = 1 - MATE_BAND * (1 - 1 / max(1, abs(score.value)))
    return certainty if score.value > 0 else 1 - certainty


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueTable:
    """The reward table of one position: all legal moves with their values, in ascending order of action id."""

    moves: tuple[str, ...]
    """UCI."""
    values: NDArray[np.float32]
    """In [0, 1] for the mover, shape [len(moves)]."""
    scores: tuple[Score, ...]
    """The scores from which the values were computed: the engine's own, except for moves that end the game in a draw."""


def engine_options() -> dict[str, str | int]:
    """Return the UCI options for computing tables; an option that an engine does not declare is not sent."""
    return {"Hash": HASH_MIB, "MultiPV": MAX_LINES}


def try_engine(path: str, *, depth: int) -> None:
    """Search two demanding positions as for the reward. Raises EngineMissingError, with the engine's own words, if that fails."""
    with EnginePool(path, num_processes=1, options=engine_options()) as pool:
        for table in value_tables([chess.Board(fen) for fen in _TRIED], pool, depth=depth):
            if isinstance(table, EngineError):
                raise EngineMissingError(f"{path} cannot evaluate all legal moves: {table}")


def value_tables(
    boards: Sequence[chess.Board], pool: EnginePool, *, depth: int, num_deep: int = NUM_DEEP
) -> Iterator[ValueTable | EngineError]:
    """Yield the reward table of each board, in order; a board whose search failed yields the EngineError instead.

    The engine searches the board from the mover's side, as the policy sees it, because an engine would otherwise score a position and its
    color mirror differently. The hash is cleared before each position, so that no table depends on the others. Moves that end the game
    in a draw have the value of a draw. So have moves that repeat a position of the board's move stack, which the engine cannot know.

    Args:
        boards: Positions with at least one legal move each.
        pool: Engines that were started with `engine_options()`.
        depth: Search depth.
        num_deep: Number of moves, the best at depth 1, that are searched to `depth`; the others keep the order of depth 1, below them.
    """
    asked: deque[tuple[chess.Board, list[int], dict[str, Score]]] = deque()

    def queries() -> Iterator[Query]:
        for board in boards:
            action_ids, shallow = legal_action_ids(board), dict[str, Score]()
            asked.append((board, action_ids, shallow))
            moves = [ACTION_UCI[chess.WHITE][index] for index in action_ids]
            yield _query(mover_fen(board), moves, depth, shallow, num_deep)

    for answer in pool.answers(queries()):
        board, action_ids, shallow = asked.popleft()
        yield answer if isinstance(answer, EngineError) else _table(board, action_ids, _capped(shallow, answer.scores))


def _query(fen: str, moves: Sequence[str], depth: int, shallow: dict[str, Score], num_deep: int) -> Query:
    """Return the search of a position; where it has two parts, the first writes its scores to `shallow`."""
    if len(moves) <= num_deep:
        return Query(fen=fen, limit=f"depth {depth}", moves=frozenset(moves))

    def deeper(answer: EngineAnswer) -> Query:
        shallow.update(answer.scores)
        # Ties go to the lowest action id, and not to the engine's order of lines.
        best = sorted(moves, key=lambda move: value_of(shallow[move]), reverse=True)[:num_deep]
        return Query(fen=fen, limit=f"depth {depth} searchmoves {' '.join(best)}", moves=frozenset(best))

    return Query(fen=fen, limit="depth 1", moves=frozenset(moves), then=deeper)


def _capped(shallow: Mapping[str, Score], deep: Mapping[str, Score]) -> dict[str, Score]:
    """Return the deep scores, and those of all other moves: in the order of their shallow scores, and each below every deep one.

    Depth 1 does not see the reply, so that a move may not be worth more than one that was looked at only because nobody looked at it. Below
    being mated in n there are n - 1 scores, so that there some become equal.
    """
    scores, lowest, last = dict(deep), min(deep.values(), key=value_of), None
    for move in sorted((move for move in shallow if move not in deep), key=lambda move: value_of(shallow[move]), reverse=True):
        if shallow[move] != last:
            last = shallow[move]
            lowest = min(last, _next_below(lowest), key=value_of)
        scores[move] = lowest
    return scores


def _next_below(score: Score) -> Score:
    """Return a score just below this one; nothing is below being mated at once."""
    if not score.is_mate:
        return Score(score.value - 1)
    return Score(score.value + 1 if score.value > 0 else min(-1, score.value + 1), is_mate=True)


def _table(board: chess.Board, action_ids: Sequence[int], scores: Mapping[str, Score]) -> ValueTable:
    drawn = {action_id(move, board.turn) for move in (*drawing_moves(board), *repeating_moves(board))}
    own, seen = ACTION_UCI[board.turn], ACTION_UCI[chess.WHITE]
    in_order = tuple(_DRAW if index in drawn else scores[seen[index]] for index in action_ids)
    return ValueTable(
        moves=tuple(own[index] for index in action_ids),
        values=np.array([value_of(score) for score in in_order], dtype=np.float32),
        scores=in_order,
    )
