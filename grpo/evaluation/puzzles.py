"""Lichess puzzles: read strictly, solved as on Lichess, reported by rating and theme (https://database.lichess.org/#puzzles)."""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import chess
import numpy as np
from numpy.typing import NDArray

from grpo.evaluation.exercises import Credits, ExerciseError, Fault, LeftOut, SolvedFraction, Solver, share_of
from grpo.reading.epd import MAX_LINE_SIZE, lines
from grpo.reading.games import Reason, SourceError
from grpo.statistics.intervals import Z95

COLUMNS: Final = ("PuzzleId", "FEN", "Moves", "Rating", "Themes")
"""Columns that the table must have, in any order; others are not read."""
BAND: Final = 200
"""Width of a band of ratings."""
_RATINGS: Final = range(1, 4_001)
_MAX_DETAIL: Final = 120
_LOGISTIC: Final = math.log(10) / 400  # Of Elo's expected score.


@dataclass(frozen=True, kw_only=True, slots=True)
class Puzzle:
    """A position, the opponent's move that begins the puzzle, and the moves that solve it with the opponent's replies between."""

    puzzle_id: str
    board: chess.Board
    """Before the opponent's move."""
    moves: tuple[chess.Move, ...]
    """Opponent's and solver's in turn; the last is the solver's."""
    rating: int
    themes: tuple[str, ...]

    def own_boards(self) -> list[chess.Board]:
        """Return the positions in which the solver is to move, if he moves as the solution does."""
        board, found = self.board.copy(stack=False), []
        for ply, move in enumerate(self.moves):
            if ply % 2:
                found.append(board.copy(stack=False))
            board.push(move)
        return found


def read_puzzle_table(chunks: Iterable[bytes], source: str) -> Iterator[Puzzle | LeftOut]:
    """Yield each puzzle of a table, or the reason why a row is none; blank lines are neither.

    Args:
        chunks: The (unpacked) bytes, cut anywhere.
        source: Name of the file.

    Raises SourceError when there is no header with all of `COLUMNS`.
    """
    places: list[int] | None = None
    seen: set[str] = set()
    for offset, line in lines(chunks):
        if not line.strip() and len(line) <= MAX_LINE_SIZE:
            continue
        try:
            cells = _cells(line)
            if places is None:
                missing = [column for column in COLUMNS if column not in cells]
                if missing:
                    raise ExerciseError(Fault.UNREADABLE_ROW, f"no column {', '.join(missing)}")
                places = [cells.index(column) for column in COLUMNS]
                continue
            if len(cells) <= max(places):
                raise ExerciseError(Fault.UNREADABLE_ROW, f"only {len(cells)} cells")
            puzzle = _puzzle(*(cells[place].strip() for place in places))
            if puzzle.puzzle_id in seen:
                raise ExerciseError(Reason.DUPLICATE, puzzle.puzzle_id)
            seen.add(puzzle.puzzle_id)
            yield puzzle
        except ExerciseError as error:
            if places is None:
                raise SourceError(
                    f"{source}: its first line is not the header of a puzzle table ({error.detail[:_MAX_DETAIL]}); it must name"
                    f" {', '.join(COLUMNS)}: download it again from https://database.lichess.org"
                ) from error
            yield LeftOut(source=source, offset=offset, reason=error.reason, detail=error.detail[:_MAX_DETAIL])
    if places is None:
        raise SourceError(f"{source}: no header and no puzzle in it; download it again from https://database.lichess.org")


def _cells(line: bytes) -> list[str]:
    if len(line) > MAX_LINE_SIZE:
        raise ExerciseError(Reason.TOO_LONG, f"a line of more than {MAX_LINE_SIZE:,} bytes")
    if b"\0" in line:
        raise ExerciseError(Reason.NUL_BYTES, "")
    try:
        (cells,) = csv.reader([line.decode()], strict=True)
    except (ValueError, csv.Error) as error:
        raise ExerciseError(Fault.UNREADABLE_ROW, str(error)) from error
    return cells


def _puzzle(puzzle_id: str, fen: str, moves: str, rating: str, themes: str) -> Puzzle:
    try:
        board = chess.Board(fen)
    except ValueError as error:
        raise ExerciseError(Reason.ILLEGAL_POSITION, str(error)) from error
    if not board.is_valid():
        raise ExerciseError(Reason.ILLEGAL_POSITION, f"{board.status().name} in {fen}")
    solution: list[chess.Move] = []
    end = board.copy(stack=False)
    for text in moves.split():
        solution.append(_legal_move(end, text))
        end.push(solution[-1])
    if not solution:
        raise ExerciseError(Reason.NO_MOVES, puzzle_id)
    if len(solution) % 2:
        raise ExerciseError(Fault.UNFINISHED, moves)
    if not (rating.isascii() and rating.isdecimal() and len(rating) <= 4 and int(rating) in _RATINGS):
        raise ExerciseError(Fault.NO_RATING, rating)
    return Puzzle(puzzle_id=puzzle_id, board=board, moves=tuple(solution), rating=int(rating), themes=tuple(dict.fromkeys(themes.split())))


def _legal_move(board: chess.Board, text: str) -> chess.Move:
    try:
        move = board.parse_uci(text)
    except chess.InvalidMoveError as error:
        raise ExerciseError(Reason.UNREADABLE_MOVE, str(error)) from error
    except chess.IllegalMoveError as error:
        raise ExerciseError(Reason.ILLEGAL_MOVE, str(error)) from error
    if not move:
        raise ExerciseError(Reason.NULL_MOVE, text)
    return move


def solve_puzzles(solver: Solver, puzzles: Sequence[Puzzle]) -> NDArray[np.float64]:
    """Return the chance, [N], that a solver solves each puzzle: 0 or 1 where it plays its best moves, exact where it gives expectations.

    Each own move must be the solution's, or else give mate, which ends the puzzle, as on Lichess.
    """
    boards: list[chess.Board] = []
    credited: list[Mapping[chess.Move, Credits]] = []
    for puzzle in puzzles:
        for board, move in zip(puzzle.own_boards(), puzzle.moves[1::2], strict=True):
            boards.append(board)
            credited.append({**dict.fromkeys(_mates(board), (0.0, 1.0)), move: (1.0, 0.0)})
    goes_on, mates = solver(boards, credited).T.tolist()
    chances: list[float] = []
    place = 0
    for puzzle in puzzles:
        end = place + len(puzzle.moves) // 2
        chance = 1.0
        for index in reversed(range(place, end)):
            chance = mates[index] + goes_on[index] * chance
        chances.append(chance)
        place = end
    return np.array(chances)


def _mates(board: chess.Board) -> list[chess.Move]:
    """Return all moves that give mate."""
    found = []
    for move in board.legal_moves:
        if board.gives_check(move):
            board.push(move)
            if board.is_checkmate():
                found.append(move)
            board.pop()
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class PerformanceRating:
    """The rating at which so much would have been expected to be solved, with its 95 % interval."""

    rating: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.rating:.0f} [{self.low:.0f}, {self.high:.0f}]"


def performance_rating(ratings: Sequence[int], chances: Sequence[float]) -> PerformanceRating:
    """Return the likeliest rating R of a solver, by Elo's 1 / (1 + 10^((r - R) / 400)) for each puzzle's rating r.

    Two puzzles of the mean rating are added, one solved and one failed, so that a finite number comes out even when all were solved or all
    failed; the interval is R +- 1.96 / sqrt(Fisher information). The scale is that of Lichess's puzzles, not of games.

    Raises ValueError without a puzzle.
    """
    if not len(ratings):
        raise ValueError("no puzzle, no performance rating")
    mean = float(np.mean(ratings))
    against = np.array([*ratings, mean, mean], dtype=np.float64)
    scored = float(np.sum(chances)) + 1.0
    low, high = against.min() - 4_000, against.max() + 4_000  # Beyond what a million puzzles, all solved, can give.
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if _expected(middle, against).sum() < scored else (low, middle)
    expected = _expected(low, against)
    spread = Z95 / (_LOGISTIC * math.sqrt(float((expected * (1 - expected)).sum())))
    return PerformanceRating(rating=float(low), low=float(low) - spread, high=float(low) + spread)


def _expected(rating: float, against: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(_LOGISTIC * (against - rating))))


@dataclass(frozen=True, kw_only=True, slots=True)
class PuzzleReport:
    """What share of some puzzles was solved."""

    solved: SolvedFraction
    by_band: Mapping[str, SolvedFraction]
    """Ratings such as `800-999`, lowest first."""
    by_theme: Mapping[str, SolvedFraction]
    """Most frequent first; a puzzle counts for each of its themes."""
    performance: PerformanceRating

    def facts(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return {
            "solved": self.solved.facts(),
            "performance_rating": self.performance.rating,
            "performance_rating_low": self.performance.low,
            "performance_rating_high": self.performance.high,
            "by_band": {name: share.facts() for name, share in self.by_band.items()},
            "by_theme": {name: share.facts() for name, share in self.by_theme.items()},
        }


def puzzle_report(puzzles: Sequence[Puzzle], chances: Sequence[float]) -> PuzzleReport:
    """Return the shares of puzzles, at least one, that `solve_puzzles` found solved."""
    bands: dict[int, list[float]] = defaultdict(list)
    themes: dict[str, list[float]] = defaultdict(list)
    for puzzle, chance in zip(puzzles, chances, strict=True):
        bands[puzzle.rating // BAND * BAND].append(chance)
        for theme in puzzle.themes:
            themes[theme].append(chance)
    return PuzzleReport(
        solved=share_of(chances),
        by_band={f"{low}-{low + BAND - 1}": share_of(bands[low]) for low in sorted(bands)},
        by_theme={theme: share_of(themes[theme]) for theme in sorted(themes, key=lambda theme: (-len(themes[theme]), theme))},
        performance=performance_rating([puzzle.rating for puzzle in puzzles], chances),
    )
