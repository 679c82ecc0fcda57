"""The value of every legal move of a position, by one search.

Values are data: under a fixed engine, depth and cleared hash the value of a move does not depend on the policy, so that a table computed
once serves all of training. One search with as many lines as there are legal moves values all of them.

How an engine's score becomes a value in [0, 1], by the name of `values.transform`. All rise with the score, and what is good for one
side is as bad for the other:

`logistic`
    band + (1 - 2 band) / (1 + exp(-slope * cp)); mate in n is 1 - band * (1 - 1/n), being mated its mirror image. A slope of 0.003 is
    a good deal flatter than games' results are, which keeps a gradient in won and lost positions: a policy rewarded by the bare chance of
    winning does not learn to finish.
`wdl`
    The same band for mates; between, (1 - share) * (W + D/2) + share * logistic(cp), where W and D are the engine's own chances to
    win and draw (`UCI_ShowWDL`). An engine without them gets 1 / (1 + exp(-0.00368208 cp)) in their place, fitted on human games
    (https://lichess.org/page/accuracy). The share keeps a gradient where W is 1 or 0 to the engine's three digits.
`clipped_centipawns`
    The reward of the field notes, for comparison: 1/2 + clip((cp after - cp before) / 1000, -2, 2) / 4, where the evaluation before the
    move is that of the best one, and mate in n counts as 10,000 - 100 n. Not a chance: the best move of any position has 1/2.
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
from grpo.engine.cache import ValueCache
from grpo.engine.pool import MAX_LINES, EnginePool, Query
from grpo.settings.tree import ValuesConfig

LICHESS_SLOPE: Final = 0.00368208
_DRAW: Final = Score(0, expected=0.5)
_BOARDS_PER_BATCH: Final = 256  # Of the cache: one look-up, one transaction.


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
"""Name -> function from the scores of all legal moves of one position to their values; see the module's docstring."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueTable:
    """All legal moves of one position with their values, in rising order of action id."""

    moves: tuple[str, ...]
    """UCI."""
    values: NDArray[np.float32]
    """In [0, 1] for the mover, shape [len(moves)]."""
    scores: tuple[Score, ...]
    """What the values were made from: the engine's own, but for moves that end the game in a draw."""


def engine_options(config: ValuesConfig) -> dict[str, str | int]:
    """Return the UCI options under which tables are made; engines without one of them do without."""
    return {"Hash": config.hash_mib, "MultiPV": MAX_LINES, "UCI_ShowWDL": "true"}


@dataclass(slots=True)
class _Entry:
    board: chess.Board
    fen: str
    action_ids: list[int]
    scores: Mapping[str, Score] | None


def value_tables(
    boards: Sequence[chess.Board],
    pool: EnginePool,
    config: ValuesConfig,
    *,
    depth: int,
    cache: ValueCache | None = None,
    mover_fens: Sequence[str] | None = None,
) -> Iterator[ValueTable | EngineError]:
    """Yield one table a board, in order; a board whose search failed gets the EngineError, and no value.

    The search is of the board seen from the mover's side, as the policy sees it: an engine's search knows left from right and White from
    Black, and would value a position and its colour mirror differently. The hash is cleared before each position, so that no table
    depends on the others. Moves that end the game in a draw are worth one; so are, for a board with a history (a move stack), those that
    lead back into it, which no search of a position alone can know.

    The pool must have been made with `engine_options(config)`. `mover_fens` are those of the boards, for who has them.
    Raises ValueError for a board without a legal move.
    """
    limit = f"depth {depth}"
    entries: deque[_Entry] = deque()

    def queries() -> Iterator[Query]:
        for start in range(0, len(boards), _BOARDS_PER_BATCH):
            batch = slice(start, start + _BOARDS_PER_BATCH)
            fens = map(mover_fen, boards[batch]) if mover_fens is None else mover_fens[batch]
            made = [_entry(board, fen) for board, fen in zip(boards[batch], fens, strict=True)]
            known = {} if cache is None else cache.get(limit, [entry.fen for entry in made])
            for entry in made:
                entry.scores = known.get(entry.fen)
                entries.append(entry)
                if entry.scores is None:
                    yield Query(fen=entry.fen, limit=limit, moves=frozenset(ACTION_UCI[chess.WHITE][index] for index in entry.action_ids))

    answered: dict[str, Mapping[str, Score]] = {}
    try:
        for answer in pool.answers(queries()):
            while (entry := entries.popleft()).scores is not None:
                yield _table(entry, entry.scores, config)
            if isinstance(answer, EngineError):
                yield answer
                continue
            answered[entry.fen] = answer.scores
            yield _table(entry, answer.scores, config)
            if cache is not None and len(answered) >= _BOARDS_PER_BATCH:
                cache.put(limit, answered)
                answered.clear()
        for entry in entries:
            assert entry.scores is not None
            yield _table(entry, entry.scores, config)
    finally:
        if cache is not None:
            cache.put(limit, answered)


def _entry(board: chess.Board, fen: str) -> _Entry:
    action_ids = legal_action_ids(board)
    if not action_ids:
        raise ValueError(f"{board.fen()} has no legal move, so that there is nothing to value")
    return _Entry(board, fen, action_ids, None)


def _table(entry: _Entry, scores: Mapping[str, Score], config: ValuesConfig) -> ValueTable:
    turn = entry.board.turn
    drawn = {action_id(move, turn) for move in (*drawing_moves(entry.board), *repeating_moves(entry.board))}
    own, seen = ACTION_UCI[turn], ACTION_UCI[chess.WHITE]
    in_order = tuple(_DRAW if index in drawn else scores[seen[index]] for index in entry.action_ids)
    return ValueTable(
        moves=tuple(own[index] for index in entry.action_ids),
        values=np.array(TRANSFORMS[config.transform](in_order, config), dtype=np.float32),
        scores=in_order,
    )
