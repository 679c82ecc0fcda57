"""Lichess puzzles: strict parser, solving by Lichess's rules, and reports by rating and theme (https://database.lichess.org/#puzzles)."""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import chess
import numpy as np
from numpy.typing import NDArray

from grpo.evaluation.exercises import Credits, ExerciseError, Fault, LeftOut, SolvedFraction, Solver, solved_fraction
from grpo.reading.epd import MAX_LINE_SIZE, lines
from grpo.reading.games import Reason, SourceError
from grpo.statistics.intervals import Z95

COLUMNS: Final = ("PuzzleId", "FEN", "Moves", "Rating", "Themes")
"""Required columns of the table, in any order; others are ignored."""
BAND: Final = 200
"""Width of a rating band."""
_RATINGS: Final = range(1, 4_001)
_MAX_DETAIL: Final = 120
_LOGISTIC: Final = math.log(10) / 400  # Logistic slope of Elo's expected score.
_MIN_RATED: Final = 10
"""Fewer puzzles have no performance rating."""
_ONE_SIDED: Final = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Puzzle:
    """A position, the opponent's first move, and the solution with the opponent's replies."""

    puzzle_id: str
    board: chess.Board
    """Before the opponent's move."""
    moves: tuple[chess.Move, ...]
    """Alternating moves of opponent and solver; the last one is the solver's."""
    rating: int
    themes: tuple[str, ...]

    def own_boards(self) -> list[chess.Board]:
        """Return the positions with the solver to move, along the solution."""
        board, found = self.board.copy(stack=False), []
        for ply, move in enumerate(self.moves):
            if ply % 2:
                found.append(board.copy(stack=False))
            board.push(move)
        return found


def read_puzzle_table(chunks: Iterable[bytes], source: str) -> Iterator[Puzzle | LeftOut]:
    """Yield each puzzle of a table, or a LeftOut for an invalid row; skip blank lines.

    Args:
        chunks: The decompressed bytes, split anywhere.
        source: Name of the file.

    Raises SourceError if there is no header with all of `COLUMNS`.
    """
    columns: list[int] | None = None
    seen: set[str] = set()
    for offset, line in lines(chunks):
        if not line.strip() and len(line) <= MAX_LINE_SIZE:
            continue
        try:
            cells = _cells(line)
            if columns is None:
                missing = [column for column in COLUMNS if column not in cells]
                if missing:
                    raise ExerciseError(Fault.UNREADABLE_ROW, f"no column {', '.join(missing)}")
                columns = [cells.index(column) for column in COLUMNS]
                continue
            if len(cells) <= max(columns):
                raise ExerciseError(Fault.UNREADABLE_ROW, f"only {len(cells)} cells")
            puzzle = _puzzle(*(cells[index].strip() for index in columns))
            if puzzle.puzzle_id in seen:
                raise ExerciseError(Reason.DUPLICATE, puzzle.puzzle_id)
            seen.add(puzzle.puzzle_id)
            yield puzzle
        except ExerciseError as error:
            if columns is None:
                raise SourceError(
                    f"{source}: its first line is not the header of a puzzle table ({error.detail[:_MAX_DETAIL]}); it must name"
                    f" {', '.join(COLUMNS)}: download it again from https://database.lichess.org"
                ) from error
            yield LeftOut(source=source, offset=offset, reason=error.reason, detail=error.detail[:_MAX_DETAIL])
    if columns is None:
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
    """Return the probability, [N], that a solver solves each puzzle: 0 or 1 for best moves, exact for expected credits.

    Each move of the solver must be the solution's move or give checkmate, which ends the puzzle, as on Lichess.
    """
    boards: list[chess.Board] = []
    credited: list[Mapping[chess.Move, Credits]] = []
    for puzzle in puzzles:
        for board, move in zip(puzzle.own_boards(), puzzle.moves[1::2], strict=True):
            boards.append(board)
            credited.append({**dict.fromkeys(_mates(board), (0.0, 1.0)), move: (1.0, 0.0)})
    continues, mates = solver(boards, credited).T.tolist()
    probabilities: list[float] = []
    start = 0
    for puzzle in puzzles:
        end = start + len(puzzle.moves) // 2
        probability = 1.0
        for index in reversed(range(start, end)):
            probability = mates[index] + continues[index] * probability
        probabilities.append(probability)
        start = end
    return np.array(probabilities)


def _mates(board: chess.Board) -> list[chess.Move]:
    """Return all moves that give checkmate."""
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
    """The rating at which the expected number of solved puzzles equals the actual one, with its 95 % interval.

    If all puzzles or none were solved there is no such rating, but a bound; of fewer than 10 puzzles there is neither.
    """

    rating: float | None
    low: float | None
    high: float | None
    num: int
    """Puzzles."""

    def __str__(self) -> str:
        if self.rating is not None:
            return f"{self.rating:.0f} [{self.low:.0f}, {self.high:.0f}]"
        if self.high is not None:
            return f"below {self.high:.0f} (95 %), for none of {self.num:,} was solved"
        if self.low is not None:
            return f"above {self.low:.0f} (95 %), for all {self.num:,} were solved"
        return f"none: {self.num} puzzles are too few, give at least {_MIN_RATED}"


def performance_rating(ratings: Sequence[int], chances: Sequence[float]) -> PerformanceRating:
    """Return the maximum-likelihood rating R of a solver, by Elo's 1 / (1 + 10^((r - R) / 400)) for each puzzle's rating r.

    One solved and one failed puzzle of the mean rating are added, which keeps the rating of nearly all or none finite. The interval is
    R +- 1.96 / sqrt(Fisher information). If none was solved, the upper bound is the R at which that has a chance of 5 %, the product of
    all 1 - p; if all were, the lower bound likewise. The scale is that of Lichess's puzzles, not of games.

    Raises ValueError without a puzzle.
    """
    if not len(ratings):
        raise ValueError("no puzzle, no performance rating")
    nothing = PerformanceRating(rating=None, low=None, high=None, num=len(ratings))
    if len(ratings) < _MIN_RATED:
        return nothing
    if sum(chances) == 0:
        return replace(nothing, high=_bound(np.array(ratings, dtype=np.float64)))
    if sum(chances) == len(ratings):
        return replace(nothing, low=-_bound(-np.array(ratings, dtype=np.float64)))
    mean = float(np.mean(ratings))
    against = np.array([*ratings, mean, mean], dtype=np.float64)
    scored = float(np.sum(chances)) + 1.0
    low, high = against.min() - 4_000, against.max() + 4_000  # Beyond the rating for a million solved puzzles.
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if _expected(middle, against).sum() < scored else (low, middle)
    expected = _expected(low, against)
    spread = Z95 / (_LOGISTIC * math.sqrt(float((expected * (1 - expected)).sum())))
    return replace(nothing, rating=float(low), low=float(low) - spread, high=float(low) + spread)


def _bound(against: NDArray[np.float64]) -> float:
    """Return the rating at which to fail on all has a chance of 5 %: Clopper and Pearson's bound, for chances that differ.

    To solve all is the same with all signs turned, because 1 - p(R, r) = p(-R, -r).
    """
    low, high = against.min() - 4_000, against.max() + 4_000
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if np.log1p(-_expected(middle, against)).sum() > math.log(_ONE_SIDED) else (low, middle)
    return float(low)


def _expected(rating: float, against: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(_LOGISTIC * (against - rating))))


@dataclass(frozen=True, kw_only=True, slots=True)
class PuzzleReport:
    """The solved fraction of some puzzles, by rating and theme."""

    solved: SolvedFraction
    by_band: Mapping[str, SolvedFraction]
    """Rating band such as `800-999` -> solved fraction, lowest first."""
    by_theme: Mapping[str, SolvedFraction]
    """Theme -> solved fraction, most frequent first; a puzzle counts for each of its themes."""
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
    """Return the report on at least one puzzle from the probabilities of `solve_puzzles`."""
    bands: dict[int, list[float]] = defaultdict(list)
    themes: dict[str, list[float]] = defaultdict(list)
    for puzzle, chance in zip(puzzles, chances, strict=True):
        bands[puzzle.rating // BAND * BAND].append(chance)
        for theme in puzzle.themes:
            themes[theme].append(chance)
    return PuzzleReport(
        solved=solved_fraction(chances),
        by_band={f"{low}-{low + BAND - 1}": solved_fraction(bands[low]) for low in sorted(bands)},
        by_theme={theme: solved_fraction(themes[theme]) for theme in sorted(themes, key=lambda theme: (-len(themes[theme]), theme))},
        performance=performance_rating([puzzle.rating for puzzle in puzzles], chances),
    )
