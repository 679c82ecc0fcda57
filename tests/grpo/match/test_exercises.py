"""Exercises: read strictly, with a reason for each entry that is none, and solved as on Lichess."""

import io
from collections.abc import Iterator, Sequence

import chess
import pytest

from grpo.dataset.games import Rejection
from grpo.match.exercises import Exercise, read_puzzles_with_answers, read_suite, solve, solved_fraction
from grpo.match.replies import Reply, ReplyCounts

HEADER = "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags"
ROOKS = "1k6/8/1K6/8/8/8/8/6RR b - - 0 1"
"""After Kb8-a8 both rooks mate on the last rank."""
KNIGHTS = "7k/8/8/8/8/2N5/8/K5N1 w - -"
"""Both knights can go to e2."""
MATE_IN_TWO = "b8a8 h1h2 a8b8 h2h8"


def row(*, fen: str = ROOKS, moves: str = "b8a8 h1h8", rating: str = "1250", themes: str = "mate") -> str:
    return f"x,{fen},{moves},{rating},80,90,100,{themes},url,"


def puzzles(*rows: str, header: str = HEADER) -> list[Exercise | Rejection]:
    return list(read_puzzles_with_answers(io.BytesIO("\n".join([header, *rows]).encode()), "puzzles.csv"))


def test_a_puzzle_has_the_solvers_moves_and_counts_for_its_band_and_its_themes() -> None:
    (found,) = puzzles(row(moves=MATE_IN_TWO, themes="mate short mate"))
    assert isinstance(found, Exercise)
    assert found.groups == ("1200-1399", "mate", "short")
    assert [(board.turn, {move.uci() for move in right}) for board, right in found.steps] == [(True, {"h1h2"}), (True, {"h2h8"})]


@pytest.mark.parametrize(
    ("operations", "right"),
    [
        ("bm Nge2;", {"g1e2"}),
        ('bm Nf3 Nge2; id "a.1"; c0 "f5=10";', {"g1f3", "g1e2"}),
        ("bm Nf3 Nge2; am Nge2;", {"g1f3"}),
        ("am Nce2 Nb1;", {"a1a2", "a1b1", "a1b2", "c3a2", "c3a4", "c3b5", "c3d5", "c3e4", "c3d1", "g1e2", "g1f3", "g1h3"}),
        ('12 34 bm Nf3; c0 "a b c d 5 6 7";', {"g1f3"}),  # Clocks of a FEN.
        ("0 1; bm Nf3;", {"g1f3"}),
        ("bm Ne2;", None),  # Ambiguous.
        ('id "no answer";', None),
        ("bm Nf3; am Nf3;", None),
    ],
)
def test_a_problem_of_a_suite_has_its_best_moves_or_is_left_out(operations: str, right: set[str] | None) -> None:
    (found,) = read_suite(io.BytesIO(f"# a comment\n\n{KNIGHTS} {operations}\n".encode()), "suite.epd")
    if right is None:
        assert isinstance(found, Rejection)
    else:
        assert isinstance(found, Exercise)
        assert {move.uci() for move in found.steps[0][1]} == right


@pytest.mark.parametrize(("castle", "move"), [("0-0", "e1g1"), ("0-0-0", "e1c1")])
def test_castling_may_be_written_with_zeros_and_clocks_may_stand_as_in_a_fen(castle: str, move: str) -> None:
    (found,) = read_suite(io.BytesIO(f'4k3/8/8/8/8/8/8/R3K2R w KQ - 30 40 bm {castle}; id "x";\n'.encode()), "suite.epd")
    assert isinstance(found, Exercise)
    [(board, right)] = found.steps
    assert (board.halfmove_clock, board.fullmove_number, right) == (30, 40, {chess.Move.from_uci(move)})


class Playing:
    """Plays the first of some moves that is legal, else gives no legal answer."""

    name = "playing"

    def __init__(self, *moves: str) -> None:
        self._moves = [chess.Move.from_uci(move) for move in moves]

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move | Reply]:
        failed = Reply(move=None, counts=ReplyCounts(num_moves=1, num_answers=1, num_illegal=1))
        return [next((move for move in self._moves if board.is_legal(move)), failed) for board in boards]


@pytest.mark.parametrize(
    ("moves", "played", "solved"),
    [
        ("b8a8 h1h8", ["h1h8"], True),
        ("b8a8 h1h8", ["g1g8"], True),  # Another mate.
        ("b8a8 h1h8", ["h1h7"], False),
        (MATE_IN_TWO, ["h1h2", "h2h8"], True),
        (MATE_IN_TWO, ["h1h2", "h2h3"], False),
        (MATE_IN_TWO, ["h1h3", "h2h8"], False),  # The first own move is wrong, the second would be right.
        (MATE_IN_TWO, ["g1g8"], True),  # Mate a move earlier.
        ("b8a8 h1h8", [], False),
    ],
)
def test_every_own_move_must_be_the_solutions_or_mate(moves: str, played: Sequence[str], solved: bool) -> None:
    (found,) = puzzles(row(moves=moves))
    assert isinstance(found, Exercise)
    [(exercise, is_solved, counts)] = solve(Playing(*played), [found])
    assert (exercise, is_solved, counts.num_illegal) == (found, solved, int(not played))


def test_exercises_are_read_and_solved_some_at_a_time_and_the_boards_numbered_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.match.exercises._AT_ONCE", 2)
    found = [exercise for exercise in puzzles(*[row(moves=MATE_IN_TWO)] * 5) if isinstance(exercise, Exercise)]
    num_read, asked = 0, []

    def read() -> Iterator[Exercise]:
        nonlocal num_read
        for exercise in found:
            num_read += 1
            yield exercise

    class Listening(Playing):
        def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move | Reply]:
            asked.append((num_read, list(games)))
            return super().choose(boards, games)

    assert [is_solved for _, is_solved, _ in solve(Listening("h1h2", "h2h8"), read())] == [True] * 5
    assert asked == [(2, [0, 1, 2, 3]), (4, [4, 5, 6, 7]), (5, [8, 9])]


def test_a_fraction_of_no_exercises_is_refused() -> None:
    with pytest.raises(ValueError, match="no exercise"):
        solved_fraction(0, 0)
