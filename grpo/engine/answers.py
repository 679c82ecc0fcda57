"""Parser of a chess engine's output (UCI protocol): best move and scores of moves.

An engine searches to depth 1, 2 and so on (iterations). With option MultiPV, an iteration scores several moves, ranked from 1.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from grpo.base.errors import PlainError

_NO_MOVE: Final = (b"(none)", b"0000", b"NULL")
_BEST_MOVE: Final = re.compile(rb"^bestmove +(\S+)", re.MULTILINE)
# Depth, optional rank, score (not a bound) and first move (after `pv`), in any order.
_LINE: Final = re.compile(
    rb"info (?!string)(?=.*?\bdepth (\d{1,9}) )(?:(?=.*?\bmultipv (\d{1,9}) ))?"
    rb"(?=.*?\bscore (cp|mate) (-?\d{1,9})(?: (?!lowerbound|upperbound)|$)).*?\bpv (\S+)"
)


class EngineError(PlainError, RuntimeError):
    """The engine did not start, died, hung, or gave no usable answer."""


class IllegalMoveError(EngineError):
    pass


class Score(NamedTuple):
    value: int  # Centipawns (1/100 pawn) for the mover, or moves to mate: negative if the mover is mated.
    is_mate: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineAnswer:
    best_move: str  # UCI.
    scores: Mapping[str, Score]  # UCI move -> score.
    depth: int = field(default=0, compare=False)  # In plies.
    failed: tuple[EngineError, ...] = field(default=(), compare=False)  # Errors of earlier attempts; `EnginePool` adds them.


def parse_best_move(data: bytes) -> str:
    """Return the best move in UCI, "" if the engine has none. Raises EngineError without a `bestmove` line."""
    line = _BEST_MOVE.search(data, max(0, data.rfind(b"bestmove")))
    if line is None:
        raise EngineError("the engine named no best move")
    return "" if line[1] in _NO_MOVE else line[1].decode("ascii", "replace")


def parse_answer(data: bytes, *, num_lines: int | None = None, needs_scores: bool = True) -> EngineAnswer:
    """Return the best move, and scores and depth of the last complete iteration. `data` is the output since `go`.

    A complete iteration scores `num_lines` moves (default: the highest rank). Raises EngineError without a best move or,
    with `needs_scores`, such an iteration.
    """
    best_move = parse_best_move(data)
    if not best_move:
        raise EngineError("the engine found no move")
    iterations: dict[int, dict[str, Score]] = {}
    highest_rank = 0
    # Lines are read backwards, because a move's last score counts.
    for line in filter(None, map(_LINE.match, reversed(data.split(b"\n")))):
        depth, rank, kind, number, move = line.groups()
        scores = iterations.setdefault(int(depth), {})
        scores.setdefault(move.decode("ascii", "replace"), Score(int(number), kind == b"mate"))
        if len(scores) == num_lines:
            return EngineAnswer(best_move=best_move, scores=scores, depth=int(depth))
        highest_rank = max(highest_rank, int(rank or 1))
    complete = [depth for depth, scores in iterations.items() if len(scores) == highest_rank]
    if num_lines is not None and iterations:
        raise EngineError(f"the engine scored {max(map(len, iterations.values()))} of {num_lines} moves")
    if not complete and needs_scores:
        raise EngineError("the engine gave no score")
    if not complete:
        return EngineAnswer(best_move=best_move, scores={})
    return EngineAnswer(best_move=best_move, scores=iterations[max(complete)], depth=max(complete))
