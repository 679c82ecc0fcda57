"""Exercises with known answers: Lichess puzzles (https://database.lichess.org/#puzzles) and test suites in EPD."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, Final

import chess

from grpo.dataset.epd import lines, puzzle_positions, puzzle_rows
from grpo.dataset.games import Reason, Rejection
from grpo.match.players import Player
from grpo.match.replies import Reply, ReplyCounts
from grpo.statistics.intervals import wilson_interval

COLUMNS: Final = ("PuzzleId", "FEN", "Moves", "Rating", "Themes")
_BAND: Final = 200  # Rating points.
_CLOCKS: Final = re.compile(r"^((?:\S+\s+){4})(\d+)\s+(\d+)(?=[\s;])[\s;]*")  # A FEN's clocks, which EPD writes as operations.
_AT_ONCE: Final = 1_000  # Exercises in memory.


@dataclass(frozen=True, kw_only=True, slots=True)
class Exercise:
    steps: tuple[tuple[chess.Board, frozenset[chess.Move]], ...]  # The solver's positions and right moves.
    groups: tuple[str, ...] = ()  # A puzzle's rating band and themes.


def read_puzzles_with_answers(stream: BinaryIO, source: str) -> Iterator[Exercise | Rejection]:
    """Read a decompressed table; a broken row gives a Rejection. Raises SourceError if one of `COLUMNS` is missing."""
    for entry in puzzle_rows(stream, source, COLUMNS):
        if isinstance(entry, Rejection):
            yield entry
            continue
        offset, row = entry
        try:
            solver_turns = puzzle_positions(row["FEN"], row["Moves"])[1::2]
            steps = tuple((board, frozenset((move,))) for board, move in solver_turns)
            low = int(row["Rating"]) // _BAND * _BAND
            yield Exercise(steps=steps, groups=(f"{low}-{low + _BAND - 1}", *dict.fromkeys(row["Themes"].split())))
        except ValueError as error:
            yield Rejection(source=source, offset=offset, reason=Reason.NOT_AN_EXERCISE, detail=str(error))


def read_suite(stream: BinaryIO, source: str) -> Iterator[Exercise | Rejection]:
    """Read a decompressed EPD file (a position and operations per line); a broken line gives a Rejection.

    The right moves are the best moves `bm`, or all legal moves if only `am` is given, except the moves to avoid, `am`.
    """
    for entry in lines(stream, source):
        if isinstance(entry, Rejection):
            yield entry
            continue
        offset, line = entry
        try:
            text = line.decode("utf-8", "replace").replace("0-0-0", "O-O-O").replace("0-0", "O-O")
            board, operations = chess.Board.from_epd(_CLOCKS.sub(r"\1hmvc \2; fmvn \3; ", text))
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


def solve(player: Player, exercises: Iterable[Exercise]) -> Iterator[tuple[Exercise, bool, ReplyCounts]]:
    """Yield each exercise, whether the player solves it, and the player's reply counts (zeros if it returns no `Reply`).

    Every move must be right, but a checkmate solves the exercise at once.
    """
    remaining, num_boards = iter(exercises), 0
    while chunk := list(islice(remaining, _AT_ONCE)):
        boards = [board for exercise in chunk for board, _ in exercise.steps]
        # Game numbers select random streams, so each board has its own number.
        answers = iter(player.choose(boards, range(num_boards, num_boards + len(boards))))
        num_boards += len(boards)
        for exercise in chunk:
            chosen = [next(answers) for _ in exercise.steps]
            counts = sum((answer.counts for answer in chosen if isinstance(answer, Reply)), ReplyCounts())
            yield exercise, _is_solved(exercise, [answer.move if isinstance(answer, Reply) else answer for answer in chosen]), counts


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


def solved_fraction(num_solved: int, num_exercises: int) -> str:
    """Return the fraction, Wilson's 95 % interval and the number of exercises. Raises ValueError without exercises.

    >>> solved_fraction(1, 4)
    ' 25.0% [4.6%, 69.9%], 4'
    """
    if not num_exercises:
        raise ValueError("no fraction solved: there is no exercise")
    low, high = wilson_interval(num_solved, num_exercises)
    return f"{num_solved / num_exercises:6.1%} [{low:.1%}, {high:.1%}], {num_exercises:,}"
