"""Exercises with known answers: Lichess puzzles (https://database.lichess.org/#puzzles) and EPD suites (`bm`, `am`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

import chess

from grpo.dataset.epd import lines, puzzle_positions, puzzle_rows
from grpo.dataset.games import Reason, Rejection
from grpo.match.intervals import wilson_interval
from grpo.match.players import Player
from grpo.match.replies import Reply, ReplyCounts

COLUMNS: Final = ("PuzzleId", "FEN", "Moves", "Rating", "Themes")
"""Required columns of a table of puzzles, in any order; others are ignored."""
_BAND: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Exercise:
    """One or several positions of one solution, each with its right moves."""

    steps: tuple[tuple[chess.Board, frozenset[chess.Move]], ...]
    groups: tuple[str, ...] = ()
    """What it counts for beside the whole: of a puzzle its band of ratings and its themes."""


def read_puzzles_with_answers(stream: BinaryIO, source: str) -> Iterator[Exercise | Rejection]:
    """Yield each puzzle of a table, or the reason why a row is none; skip blank lines.

    Args:
        stream: The decompressed bytes.
        source: Name of the file.

    Raises SourceError if there is no header with all of `COLUMNS`.
    """
    for offset, row in puzzle_rows(stream, source, COLUMNS):
        try:
            steps = tuple((board, frozenset((move,))) for board, move in puzzle_positions(row["FEN"], row["Moves"])[1::2])
            low = int(row["Rating"]) // _BAND * _BAND
            yield Exercise(steps=steps, groups=(f"{low}-{low + _BAND - 1}", *dict.fromkeys(row["Themes"].split())))
        except ValueError as error:
            yield Rejection(source=source, offset=offset, reason=Reason.NOT_AN_EXERCISE, detail=str(error))


def read_suite(stream: BinaryIO, source: str) -> Iterator[Exercise | Rejection]:
    """Yield each problem of an EPD file, or the reason why a line is none; skip blank lines and `#` comments.

    The right moves are the best ones (`bm`) or, without those, all but the ones to avoid (`am`).

    Args:
        stream: The decompressed bytes.
        source: Name of the file.
    """
    for offset, line in lines(stream):
        try:
            board, operations = chess.Board.from_epd(line.decode("utf-8", "replace"))
            best, avoid = (operations.get(name) or [] for name in ("bm", "am"))
            if not isinstance(best, list) or not isinstance(avoid, list) or not (best or avoid):
                raise ValueError("no answer: neither bm nor am")
            right = frozenset(best or board.legal_moves) - frozenset(avoid)
            if not right:
                raise ValueError("no legal move is right")
            if not board.is_valid():
                raise ValueError(f"impossible position ({board.status().name})")
            yield Exercise(steps=((board, right),))
        except (ValueError, IndexError, AssertionError) as error:  # python-chess asserts on some broken operations.
            yield Rejection(source=source, offset=offset, reason=Reason.NOT_AN_EXERCISE, detail=str(error) or type(error).__name__)


def solve(player: Player, exercises: Sequence[Exercise]) -> tuple[list[bool], ReplyCounts]:
    """Return which exercises a player solves, and counts of its answers if it can fail to name a legal move.

    Each of its moves must be right, or give checkmate, which ends the exercise, as on Lichess.
    """
    boards = [board for exercise in exercises for board, _ in exercise.steps]
    answers = player.choose(boards, range(len(boards)))
    counts = sum((answer.counts for answer in answers if isinstance(answer, Reply)), ReplyCounts())
    moves = iter([answer.move if isinstance(answer, Reply) else answer for answer in answers])
    return [_is_solved(exercise, [next(moves) for _ in exercise.steps]) for exercise in exercises], counts


def _is_solved(exercise: Exercise, moves: Sequence[chess.Move | None]) -> bool:
    for (board, right), move in zip(exercise.steps, moves, strict=True):
        if move is None:
            return False
        after = board.copy(stack=False)
        after.push(move)
        if after.is_checkmate():
            return True
        if move not in right:
            return False
    return True


def solved_fraction(solved: Sequence[bool]) -> str:
    """Return the fraction that is solved with Wilson's 95 % interval, and the number of exercises.

    >>> solved_fraction([True, False, False, False])
    ' 25.0% [4.6%, 69.9%], 4'
    """
    low, high = wilson_interval(sum(solved), len(solved))
    return f"{sum(solved) / len(solved):6.1%} [{low:.1%}, {high:.1%}], {len(solved):,}"
