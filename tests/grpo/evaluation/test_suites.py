"""Suites: EPD operations as the standard and real suites write them, scored by hand, with a reason for each line that is no problem."""

from collections.abc import Sequence
from functools import partial

import chess
import numpy as np
import pytest
from doubles import WrittenPolicy

from grpo.evaluation.exercises import Fault, LeftOut, expected_credits
from grpo.evaluation.suites import Problem, read_suite, solve_suite, suite_report
from grpo.reading.epd import MAX_LINE_SIZE
from grpo.reading.games import Reason

# Of the Strategic Test Suite, in both of the forms in which it is spread, and of Bratko and Kopec's.
STS = "1kr5/3n4/q3p2p/p2n2p1/PppB1P2/5BP1/1P2Q2P/3R2K1 w - -"
STS_C0 = f'{STS} bm f5; id "Undermine.001"; c0 "f5=10, Be5+=2, Bf2=3, Bg4=2";'
STS_C9 = f'{STS} bm f5; c7 "f5 Be5+ Bf2 Bg4"; c8 "10 2 3 2"; c9 "f4f5 d4e5 d4f2 f3g4"; id "STS(v1.0) Undermine.001";'
STS_POINTS = {"f4f5": 10, "d4e5": 2, "d4f2": 3, "f3g4": 2}
BK = '1k1r4/pp1b1R2/3q2pp/4p3/2B5/4Q3/PPP2B2/2K5 b - - bm Qd1+; id "BK.01";'
KNIGHTS = "7k/8/8/8/8/2N5/8/K5N1 w - -"
"""Both knights can go to e2."""


def read(text: str | bytes, size: int = 1 << 20) -> list[Problem | LeftOut]:
    data = text.encode() if isinstance(text, str) else text
    return list(read_suite((data[start : start + size] for start in range(0, len(data), size)), "suite.epd"))


def problem(line: str) -> Problem:
    (found,) = read(line)
    assert isinstance(found, Problem), found
    return found


def ucis(moves: Sequence[chess.Move] | frozenset[chess.Move]) -> set[str]:
    return {move.uci() for move in moves}


@pytest.mark.parametrize(
    ("operations", "best", "avoid"),
    [
        ("bm Nge2;", {"g1e2"}, set()),
        ("bm g1e2;", {"g1e2"}, set()),
        ("bm Nge2", {"g1e2"}, set()),
        ("bm Nge2 Nf3;", {"g1e2", "g1f3"}, set()),
        ("bm Nge2, Nf3;", {"g1e2", "g1f3"}, set()),
        ("bm Nge2!! Nf3!?;", {"g1e2", "g1f3"}, set()),
        ("bm Nge2+;", {"g1e2"}, set()),
        ("am Nce2 Nb1;", set(), {"c3e2", "c3b1"}),
        ("bm Nf3; am c3e2;", {"g1f3"}, {"c3e2"}),
        ("0 1 bm Nf3;", {"g1f3"}, set()),
        ("12 40; bm Nf3;", {"g1f3"}, set()),
        ('id "a; bm Ka2;"; hmvc 3; acd 12; ce -20; pv Nf3 Kg8; bm Nf3;', {"g1f3"}, set()),
        ('c0 "say \\"x\\" twice"; bm Nf3;', {"g1f3"}, set()),
        (";; bm Nf3;; ", {"g1f3"}, set()),
    ],
)
def test_operations_are_read(operations: str, best: set[str], avoid: set[str]) -> None:
    found = problem(f"{KNIGHTS} {operations}")
    assert (ucis(found.best), ucis(found.avoid)) == (best, avoid)
    assert not found.points


@pytest.mark.parametrize("line", [STS_C0, STS_C9, STS_C9.replace("c9 ", "c5 "), STS_C0.replace("bm f5; ", "")])
def test_points_of_both_forms_of_the_strategic_test_suite_are_the_same(line: str) -> None:
    assert {move.uci(): points for move, points in problem(line).points.items()} == STS_POINTS


@pytest.mark.parametrize(("name", "suite"), [
    ("Undermine.001", "Undermine"), ("STS(v2.2) Open Files and Diagonals.100", "STS(v2.2) Open Files and Diagonals"), ("BK.01", "BK"),
    ("WAC 300", "WAC"), ("position #7", "position"), ("Eigenmann", "Eigenmann"), ("12", "suite.epd"), ("", "suite.epd"),
])  # fmt: skip
def test_a_suite_is_the_id_without_its_number(name: str, suite: str) -> None:
    found = problem(f'{KNIGHTS} bm Nf3; id "{name}";')
    assert found.suite == suite
    assert found.problem_id == (name or "suite.epd, byte 0")


def test_python_chess_reads_the_same(random_boards: list[chess.Board]) -> None:
    rng = np.random.default_rng(0)
    lines, expected = [], []
    boards = [board for board in random_boards[::25] if board.legal_moves.count() > 3 and not board.is_insufficient_material()]
    for number, board in enumerate({board.epd(): board for board in boards}.values()):
        moves = list(board.legal_moves)
        order = rng.permutation(len(moves))
        best, avoid = [moves[index] for index in order[:2]], [moves[index] for index in order[2:3]]
        lines.append(board.epd(bm=best, am=avoid, id=f"some.{number}", hmvc=board.halfmove_clock, c0='a "b"; c\\'))
        expected.append((set(best), set(avoid)))
    found = read("\n".join(lines), 1_000)
    assert len(found) > 100
    assert [(set(one.best), set(one.avoid)) for one in found if isinstance(one, Problem)] == expected
    for one, line in zip(found, lines, strict=True):
        assert isinstance(one, Problem)
        assert one.board.fen() == chess.Board.from_epd(line)[0].fen()


@pytest.mark.parametrize(
    ("bad", "reason", "detail"),
    [
        ("hello", Reason.ILLEGAL_POSITION, "expected"),
        ("8/8/8/8/8/8/8/8 w - - bm e4;", Reason.ILLEGAL_POSITION, "KING"),
        ("7k/5Q2/6K1/8/8/8/8/8 b - - bm Kg8;", Reason.GAME_OVER, "stalemate"),
        ("bnrbkrqn/pppppppp/8/8/8/8/PPPPPPPP/BNRBKRQN w FCfc - bm e4;", Reason.CHESS960, "castling"),
        (f"{KNIGHTS} bm Ne2;", Reason.AMBIGUOUS_MOVE, "Ne2"),
        (f"{KNIGHTS} bm Nf3 Ne2;", Reason.AMBIGUOUS_MOVE, "Ne2"),
        (f"{KNIGHTS} bm Nh1;", Reason.ILLEGAL_MOVE, "Nh1"),
        (f"{KNIGHTS} bm g1g3;", Reason.ILLEGAL_MOVE, "g1g3"),
        (f"{KNIGHTS} am Qd1;", Reason.ILLEGAL_MOVE, "Qd1"),
        (f"{KNIGHTS} bm Xx9;", Reason.UNREADABLE_MOVE, "Xx9"),
        (f"{KNIGHTS} bm --;", Reason.NULL_MOVE, "--"),
        (f"{KNIGHTS} bm 0000;", Reason.NULL_MOVE, "0000"),
        (f'{KNIGHTS} c0 "Nf3=10, Ne2=4";', Reason.AMBIGUOUS_MOVE, "Ne2"),
        (KNIGHTS, Fault.NO_ANSWER, "neither bm, am nor points"),
        (f'{KNIGHTS} c0 "a fine position"; id "x.1";', Fault.NO_ANSWER, "neither"),
        (f"{KNIGHTS} bm;", Fault.NO_ANSWER, "neither"),
        (f"{KNIGHTS} bm Nf3; am g1f3;", Fault.CONTRADICTING_ANSWERS, "no legal move is right"),
        ("k7/8/1K6/8/8/8/8/7R b - - am Kb8;", Fault.CONTRADICTING_ANSWERS, "no legal move is right"),
        (f'{KNIGHTS} c0 "Nf3=10, g1f3=4";', Fault.CONTRADICTING_ANSWERS, "worth 10 and 4"),
        (f'{KNIGHTS} c0 "Nf3=0, Nh3=0";', Fault.CONTRADICTING_ANSWERS, "no move is worth a point"),
        (f'{KNIGHTS} bm Nf3; c9 "g1f3 g1h3"; c8 "10";', Fault.UNREADABLE_ROW, "2 moves in c9, 1 numbers in c8"),
        (f"{KNIGHTS} bm Nf3; bm Nh3;", Fault.UNREADABLE_ROW, "bm is given twice"),
        (f'{KNIGHTS} bm Nf3; id "never closed;', Fault.UNREADABLE_ROW, "never closed"),
        (f"{KNIGHTS} bm Nf3;" + " " * MAX_LINE_SIZE, Reason.TOO_LONG, "65,536"),
        (f"{KNIGHTS} bm Nf3; id \0;", Reason.NUL_BYTES, ""),
        (BK.replace("BK.01", "BK.02"), Reason.DUPLICATE, "BK.02"),
    ],
)
def test_a_line_that_is_no_problem_is_left_out_with_its_reason_and_the_next_is_read(bad: str, reason: Reason | Fault, detail: str) -> None:
    text = f"# a comment\n\n{BK}\n{bad}\n{STS_C0}"
    first, left_out, last = read(text)
    assert isinstance(first, Problem)
    assert isinstance(last, Problem)
    assert (first.problem_id, last.problem_id) == ("BK.01", "Undermine.001")
    assert isinstance(left_out, LeftOut)
    assert (left_out.reason, left_out.offset) == (reason, text.index(bad))
    assert detail in left_out.detail
    assert len(left_out.detail) <= 120


def test_broken_lines_never_raise() -> None:
    rng = np.random.default_rng(0)
    whole = f"{BK}\n{STS_C0}\n{STS_C9}\n".encode()
    for _ in range(300):
        data = bytearray(whole)
        for place in rng.integers(len(data), size=3):
            data[place] = int(rng.integers(256))
        for found in read(bytes(data)):
            assert isinstance(found, Problem) or found.reason


# Solving.


def solved(line: str, uci: str) -> tuple[float, float]:
    """Return what a player of this move gets."""
    policy = WrittenPolicy(lambda board, move: 50.0 * (move.uci() == uci))
    won, points = solve_suite(partial(expected_credits, policy, temperature=0.0), [problem(line)])[0].tolist()
    return won, points


@pytest.mark.parametrize(
    ("line", "uci", "expected"),
    [
        (f"{KNIGHTS} bm Nf3 Nh3;", "g1h3", (1, 1)),
        (f"{KNIGHTS} bm Nf3 Nh3;", "a1a2", (0, 0)),
        (f"{KNIGHTS} am Nf3;", "a1a2", (1, 1)),
        (f"{KNIGHTS} am Nf3;", "g1f3", (0, 0)),
        (f"{KNIGHTS} bm Nh3; am Nf3;", "a1a2", (0, 0)),
        (BK, "d6d1", (1, 1)),  # Black to move.
        (BK, "d6d2", (0, 0)),
        (STS_C0, "f4f5", (1, 1)),
        (STS_C0, "d4f2", (0, 0.3)),
        (STS_C0, "h2h3", (0, 0)),
        (f'{STS} c0 "f5=8, Bf2=8, Bg4=2";', "d4f2", (1, 1)),  # Without bm, what is worth most solves.
        (f'{STS} bm f5; c0 "f5=5, Bf2=10";', "f4f5", (1, 0.5)),
    ],
)
def test_what_a_move_gets(line: str, uci: str, expected: tuple[float, float]) -> None:
    assert solved(line, uci) == pytest.approx(expected)


def test_sampled_moves_get_what_is_expected() -> None:
    weights = {"f4f5": 3.0, "d4f2": 2.0, "h2h3": 1.0}
    policy = WrittenPolicy(lambda board, move: float(np.log(weights.get(move.uci(), 1e-9))))
    assert solve_suite(partial(expected_credits, policy, temperature=1.0), [problem(STS_C0)])[0] == pytest.approx(
        [3 / 6, (3 + 0.3 * 2) / 6], abs=1e-5
    )
    assert solve_suite(partial(expected_credits, policy, temperature=0.5), [problem(STS_C0)])[0] == pytest.approx(
        [9 / 14, (9 + 0.3 * 4) / 14], abs=1e-5
    )


def test_shares_are_by_suite_with_intervals() -> None:
    lines = [STS_C0, STS_C0.replace("001", "002").replace("f5=10", "f5=9"), BK]
    problems = [one for one in read("\n".join(lines)) if isinstance(one, Problem)]
    report = suite_report(problems, np.array([[1, 1], [0, 0.3], [0, 0]]))
    assert list(report.by_suite) == ["BK", "Undermine"]
    won, points = report.by_suite["Undermine"]
    assert (won.num, won.solved, points.num, points.solved) == (2, 1, 2, pytest.approx(1.3))
    assert (report.solved.num, report.solved.solved, report.points.solved) == (3, 1, pytest.approx(1.3))
    assert 0 < won.low < 0.5 < won.high < 1
    facts = report.facts()
    assert facts["by_suite"]["BK"]["solved"]["share"] == 0
    assert facts["points"]["share"] == pytest.approx(1.3 / 3)


def test_a_duplicate_of_the_same_id_is_told_by_the_bytes_of_both() -> None:
    line = f"{BK}\n"
    [first, left_out] = read_suite([(line + line).encode()], "suite.epd")
    assert isinstance(first, Problem)
    assert isinstance(left_out, LeftOut)
    assert left_out.detail == f"{first.problem_id} (byte {len(line)}) is {first.problem_id} (byte 0) again"
