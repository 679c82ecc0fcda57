"""EPD test suites: best moves, moves to avoid, and points for several moves as in the Strategic Test Suite (STS).

https://www.chessprogramming.org/Extended_Position_Description; points are in `c0 "f5=10, Be5+=2"`, or in `c8 "10 2"` with the moves in
`c9 "f4f5 d4e5"` (UCI) or `c7 "f5 Be5+"` (SAN).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import chess
import numpy as np
from numpy.typing import NDArray

from grpo.evaluation.exercises import Credits, ExerciseError, Fault, LeftOut, SolvedFraction, Solver, solved_fraction
from grpo.reading.epd import MAX_LINE_SIZE, lines, read_line
from grpo.reading.games import Reason

_MAX_DETAIL: Final = 120
_CLOCKS: Final = re.compile(r"\d+(\s+\d+)?(?=[\s;]|\Z)")
_OPERAND: Final = r'(?:"[^"\\]*+(?:\\.[^"\\]*+)*"|[^\s;"]++)'
_OPERATION: Final = re.compile(rf"\s*([A-Za-z]\w*)((?:\s++{_OPERAND})*)\s*(?:;|\Z)")
_OPERANDS: Final = re.compile(_OPERAND)
_GLYPHS: Final = re.compile(r"[!?]+\Z")
_UCI: Final = re.compile(r"[a-h][1-8][a-h][1-8][nbrqNBRQ]?")
_NULL: Final = frozenset({"0000", "--", "Z0", "@@@@"})
_POINTS: Final = re.compile(r"\s*(\S+?)\s*=\s*(\d{1,6})\s*")
_NUMBER: Final = re.compile(r"[\s.,:#_-]*\d+\s*\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A position with its best moves, moves to avoid, or points for moves."""

    problem_id: str
    """The operation `id`, or file name and byte offset."""
    suite: str
    """The id without its number, or the file's name."""
    board: chess.Board
    best: frozenset[chess.Move]
    """`bm`; empty if not given."""
    avoid: frozenset[chess.Move]
    """`am`."""
    points: Mapping[chess.Move, int]
    """Points of moves; empty if not given."""

    def credits(self) -> dict[chess.Move, Credits]:
        """Return legal move -> (1 if it solves the problem, its fraction of the maximal points); moves without credit are left out.

        The solutions are the best moves; if there are none, the moves with the most points; without points, all moves except those to
        avoid. Without points a solution gets all of them.
        """
        most = max(self.points.values(), default=0)
        right = self.best or {move for move, points in self.points.items() if points == most} or set(self.board.legal_moves) - self.avoid
        worth = {move: points / most for move, points in self.points.items()} or dict.fromkeys(right, 1.0)
        return {move: (float(move in right), worth.get(move, 0.0)) for move in {*right, *worth}}


def read_suite(chunks: Iterable[bytes], source: str) -> Iterator[Problem | LeftOut]:
    """Yield each problem of an EPD file, or a LeftOut for an invalid line; skip blank lines and `#` comments.

    A move may be in SAN or UCI. A line with an illegal, ambiguous or unreadable move is invalid.

    Args:
        chunks: The decompressed bytes, split anywhere.
        source: Name of the file.
    """
    seen: dict[object, str] = {}
    for offset, line in lines(chunks):
        if line.lstrip().startswith(b"#") or (not line.strip() and len(line) <= MAX_LINE_SIZE):
            continue
        try:
            problem = _problem(line, source, offset)
            place = f"{problem.problem_id} (byte {offset:,})" if problem.problem_id != f"{source}, byte {offset}" else f"byte {offset:,}"
            key = (problem.board.epd(), problem.best, problem.avoid, frozenset(problem.points.items()))
            if key in seen:
                raise ExerciseError(Reason.DUPLICATE, f"{place} is {seen[key]} again")
            seen[key] = place
            yield problem
        except ExerciseError as error:
            yield LeftOut(source=source, offset=offset, reason=error.reason, detail=error.detail[:_MAX_DETAIL])


def _problem(line: bytes, source: str, offset: int) -> Problem:
    board = read_line(line)
    if not isinstance(board, chess.Board):
        raise ExerciseError(*board)
    operations = _operations(line.split(None, 4)[4].decode("utf-8", "replace") if len(line.split(None, 4)) > 4 else "")
    best = frozenset(_move(board, text) for text in operations.get("bm", ()))
    avoid = frozenset(_move(board, text) for text in operations.get("am", ()))
    points = _points(board, has_answer=bool(best or avoid), operations={name: " ".join(operands) for name, operands in operations.items()})
    if best & avoid or avoid.issuperset(board.legal_moves):
        raise ExerciseError(Fault.CONTRADICTING_ANSWERS, "no legal move is right")
    if points and not max(points.values()):
        raise ExerciseError(Fault.CONTRADICTING_ANSWERS, "no move is worth a point")
    if not (best or avoid or points):
        raise ExerciseError(Fault.NO_ANSWER, "neither bm, am nor points")
    name = " ".join(operations.get("id", ())).strip()
    return Problem(
        problem_id=name or f"{source}, byte {offset}",
        suite=_NUMBER.sub("", name) or source,
        board=board,
        best=best,
        avoid=avoid,
        points=points,
    )


def _operations(text: str) -> dict[str, list[str]]:
    """Return opcode -> operands, without quotes."""
    found: dict[str, list[str]] = {}
    position = clocks.end() if (clocks := _CLOCKS.match(text)) else 0
    while text[position:].strip(" \t;"):
        operation = _OPERATION.match(text, position + len(text[position:]) - len(text[position:].lstrip(" \t;")))
        if operation is None:
            raise ExerciseError(Fault.UNREADABLE_ROW, text[position:].strip())
        if operation[1] in found:
            raise ExerciseError(Fault.UNREADABLE_ROW, f"{operation[1]} is given twice")
        found[operation[1]] = [re.sub(r"\\(.)", r"\1", word[1:-1]) if word[0] == '"' else word for word in _OPERANDS.findall(operation[2])]
        position = operation.end()
    return found


def _move(board: chess.Board, text: str) -> chess.Move:
    """Return the legal move for a text in SAN or UCI; SAN may have a missing or wrong check mark, or a glyph."""
    plain = _GLYPHS.sub("", text.strip(","))
    if plain in _NULL:
        raise ExerciseError(Reason.NULL_MOVE, text)
    try:
        return board.parse_uci(plain.lower()) if _UCI.fullmatch(plain) else board.parse_san(plain)
    except chess.AmbiguousMoveError as error:
        raise ExerciseError(Reason.AMBIGUOUS_MOVE, str(error)) from error
    except chess.IllegalMoveError as error:
        raise ExerciseError(Reason.ILLEGAL_MOVE, str(error)) from error
    except chess.InvalidMoveError as error:
        raise ExerciseError(Reason.UNREADABLE_MOVE, str(error)) from error


def _points(board: chess.Board, operations: Mapping[str, str], *, has_answer: bool) -> dict[chess.Move, int]:
    """Return move -> points; empty if `c0`, or `c8` with `c9` or `c7`, is not a list of points, because comments may contain anything.

    A `c0` such as "depth=12" only looks like points: beside another answer it is a comment if its first word is not a move.
    """
    numbers = operations.get("c8", "").split()
    for opcode in ("c9", "c7"):
        texts = operations.get(opcode, "").split()
        if texts and numbers and all(number.isascii() and number.isdecimal() and len(number) <= 6 for number in numbers):
            if len(texts) != len(numbers):
                raise ExerciseError(Fault.UNREADABLE_ROW, f"{len(texts)} moves in {opcode}, {len(numbers)} numbers in c8")
            return _worth(board, zip(texts, numbers, strict=True))
    listed = [_POINTS.fullmatch(part) for part in operations.get("c0", "").split(",")]
    pairs = [(part[1], part[2]) for part in listed if part is not None]
    if len(pairs) < len(listed):
        return {}
    try:
        return _worth(board, pairs)
    except ExerciseError as error:
        if has_answer and error.reason == Reason.UNREADABLE_MOVE:
            return {}
        raise


def _worth(board: chess.Board, pairs: Iterable[tuple[str, str]]) -> dict[chess.Move, int]:
    points: dict[chess.Move, int] = {}
    for text, number in pairs:
        move = _move(board, text)
        if points.setdefault(move, int(number)) != int(number):
            raise ExerciseError(Fault.CONTRADICTING_ANSWERS, f"{text} is worth {points[move]} and {number}")
    return points


def solve_suite(solver: Solver, problems: Sequence[Problem]) -> NDArray[np.float64]:
    """Return the expected credits of the solver's move on each problem, [N, 2]: solved, and fraction of the maximal points."""
    return solver([problem.board for problem in problems], [problem.credits() for problem in problems])


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteReport:
    """The solved fraction of some problems, and the fraction of their points."""

    solved: SolvedFraction
    points: SolvedFraction
    by_suite: Mapping[str, tuple[SolvedFraction, SolvedFraction]]
    """Suite -> (solved, points), sorted by name; empty where ids form none."""

    def facts(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return {
            "solved": self.solved.facts(),
            "points": self.points.facts(),
            "by_suite": {name: {"solved": solved.facts(), "points": points.facts()} for name, (solved, points) in self.by_suite.items()},
        }


def suite_report(problems: Sequence[Problem], reached: NDArray[np.float64]) -> SuiteReport:
    """Return the report on at least one problem from the credits of `solve_suite`."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, problem in enumerate(problems):
        rows[problem.suite].append(row)
    if 2 * sum(len(of) == 1 for of in rows.values()) > len(rows):  # Ids that name single problems form no suites.
        rows = defaultdict(list)

    def fractions(of: Sequence[int]) -> tuple[SolvedFraction, SolvedFraction]:
        solved, points = reached[of].T.tolist()
        return solved_fraction(solved), solved_fraction(points)

    solved, points = fractions(range(len(problems)))
    return SuiteReport(solved=solved, points=points, by_suite={suite: fractions(rows[suite]) for suite in sorted(rows)})
