"""The reward: a value in [0, 1] for every legal move of a position, computed from one MultiPV search of the engine.

With a fixed engine, depth and cleared hash, a move's value does not depend on the policy. A table computed once therefore serves all of
training. One search with as many lines as legal moves scores all of them.

`values.transform` names the function from an engine score to a value. Each one is increasing in the score, and symmetric between the two
players:

`logistic`
    band + (1 - 2 band) / (1 + exp(-slope * cp)); mate in n is 1 - band * (1 - 1/n), and being mated is its mirror image. A slope of 0.003
    is flatter than the results of games. This keeps a gradient in won and lost positions: a policy that is rewarded by the plain win
    probability does not learn to finish games.
`wdl`
    The same band for mates; otherwise (1 - share) * (W + D/2) + share * logistic(cp), where W and D are the engine's win and draw
    probabilities (`UCI_ShowWDL`). An engine without them gets 1 / (1 + exp(-0.00368208 cp)) instead, fitted on human games
    (https://lichess.org/page/accuracy). The logistic share keeps a gradient where W rounds to 1 or 0.
`clipped_centipawns`
    The reward of the field notes, for comparison: 1/2 + clip((cp after - cp before) / 1000, -2, 2) / 4. The evaluation before the move is
    that of the best move, and mate in n counts as 10,000 - 100 n. This is not a probability: the best move of every position has 1/2.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import chess
import numpy as np
from numpy.typing import NDArray

from grpo.board.actions import ACTION_UCI, action_id, legal_action_ids
from grpo.board.draws import drawing_moves, repeating_moves
from grpo.board.encoding import mover_fen
from grpo.engine.answers import EngineError, Score
from grpo.engine.pool import MAX_LINES, EnginePool, Query
from grpo.settings.tree import ValuesConfig

LICHESS_SLOPE: Final = 0.00368208
_DRAW: Final = Score(0, expected=0.5)


def win_chance(score: Score) -> float:
    """Return the mover's win probability as Lichess computes it from centipawns (https://lichess.org/page/accuracy); a mate is certain.

    This is for people to look at: the reward is another function of the score, see the module's docstring.
    """
    return float(score.value > 0) if score.is_mate else _logistic(LICHESS_SLOPE * score.value)


def _logistic(x: float) -> float:
    return (1 + math.tanh(x / 2)) / 2  # Written so that it cannot overflow.


def _in_band(score: Score, within: float, band: float) -> float:
    if not score.is_mate:
        return band + (1 - 2 * band) * within
    certainty = 1 - band * (1 - 1 / max(1, abs(score.value)))
    return certainty if score.value > 0 else 1 - certainty


def _logistic_values(scores: Sequence[Score], config: ValuesConfig) -> list[float]:
    return [_in_band(score, _logistic(config.logistic_slope * score.value), config.mate_band) for score in scores]


def _wdl_values(scores: Sequence[Score], config: ValuesConfig) -> list[float]:
    share = config.wdl_logistic_fraction
    values = []
    for score in scores:
        expected = _logistic(LICHESS_SLOPE * score.value) if score.expected is None else score.expected
        mixed = (1 - share) * expected + share * _logistic(config.logistic_slope * score.value)
        values.append(_in_band(score, mixed, config.mate_band))
    return values


def _clipped_values(scores: Sequence[Score], _: ValuesConfig) -> list[float]:
    centipawns = [score.value if not score.is_mate else _mate_centipawns(score.value) for score in scores]
    before = max(centipawns)
    return [0.5 + max(-2.0, min(2.0, (after - before) / 1000)) / 4 for after in centipawns]


def _mate_centipawns(moves: int) -> int:
    size = 10_000 - 100 * min(abs(moves), 50)
    return size if moves > 0 else -size


TRANSFORMS: Final[Mapping[str, Callable[[Sequence[Score], ValuesConfig], list[float]]]] = {
    "logistic": _logistic_values,
    "wdl": _wdl_values,
    "clipped_centipawns": _clipped_values,
}
"""Name of the transform -> function from the scores of all legal moves of one position to their values; see the module's docstring."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueTable:
    """The reward table of one position: all legal moves with their values, in ascending order of action id."""

    moves: tuple[str, ...]
    """UCI."""
    values: NDArray[np.float32]
    """In [0, 1] for the mover, shape [len(moves)]."""
    scores: tuple[Score, ...]
    """The scores from which the values were computed: the engine's own, except for moves that end the game in a draw."""


def engine_options(config: ValuesConfig) -> dict[str, str | int]:
    """Return the UCI options for computing tables; an option that an engine does not declare is not sent."""
    return {"Hash": config.hash_mib, "MultiPV": MAX_LINES, "UCI_ShowWDL": "true"}


def value_tables(
    boards: Sequence[chess.Board],
    pool: EnginePool,
    config: ValuesConfig,
    *,
    depth: int,
    mover_fens: Sequence[str] | None = None,
) -> Iterator[ValueTable | EngineError]:
    """Yield the reward table of each board, in order; a board whose search failed yields the EngineError instead.

    The engine searches the board from the mover's side, as the policy sees it, because an engine would otherwise score a position and its
    colour mirror differently. The hash is cleared before each position, so that no table depends on the others. Moves that end the game
    in a draw have the value of a draw. So have moves that repeat a position of the board's move stack, which the engine cannot know.

    Args:
        boards: Positions with at least one legal move each.
        pool: Engines that were started with `engine_options(config)`.
        config: The transform and its parameters.
        depth: Search depth.
        mover_fens: `mover_fen` of each board, if the caller has them already.

    Raises ValueError for a board without a legal move.
    """
    fens = map(mover_fen, boards) if mover_fens is None else mover_fens
    asked: deque[tuple[chess.Board, list[int]]] = deque()

    def queries() -> Iterator[Query]:
        for board, fen in zip(boards, fens, strict=True):
            action_ids = legal_action_ids(board)
            if not action_ids:
                raise ValueError(f"{board.fen()} has no legal move, so that there is nothing to value")
            asked.append((board, action_ids))
            yield Query(fen=fen, limit=f"depth {depth}", moves=frozenset(ACTION_UCI[chess.WHITE][index] for index in action_ids))

    for answer in pool.answers(queries()):
        board, action_ids = asked.popleft()
        yield answer if isinstance(answer, EngineError) else _table(board, action_ids, answer.scores, config)


def _table(board: chess.Board, action_ids: Sequence[int], scores: Mapping[str, Score], config: ValuesConfig) -> ValueTable:
    drawn = {action_id(move, board.turn) for move in (*drawing_moves(board), *repeating_moves(board))}
    own, seen = ACTION_UCI[board.turn], ACTION_UCI[chess.WHITE]
    in_order = tuple(_DRAW if index in drawn else scores[seen[index]] for index in action_ids)
    return ValueTable(
        moves=tuple(own[index] for index in action_ids),
        values=np.array(TRANSFORMS[config.transform](in_order, config), dtype=np.float32),
        scores=in_order,
    )
