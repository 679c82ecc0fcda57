"""Puzzles: read strictly with a reason for each row that is none, solved as on Lichess, rated as Elo does."""

import math
import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import chess
import numpy as np
import pytest
from doubles import WrittenPolicy, lively_policy, made_up_number

from grpo.board.encoding import position_key
from grpo.evaluation.exercises import Fault, LeftOut, expected_credits
from grpo.evaluation.puzzles import Puzzle, performance_rating, puzzle_report, read_puzzle_table, solve_puzzles
from grpo.policy.distribution import NetworkPolicy, PositionBatch
from grpo.reading.epd import MAX_LINE_SIZE
from grpo.reading.games import Reason, SourceError
from grpo.reading.streams import find_files, read_chunks

SAMPLE_DATA = os.environ.get("CHESS_GRPO_SAMPLE_DATA", "")
HEADER = "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags"
# From the public database (CC0).
ROW = (
    "000rZ,2kr1b1r/p1p2pp1/2pqb3/7p/3N2n1/2NPB3/PPP2PPP/R2Q1RK1 w - - 2 13,d4e6 d6h2,633,93,100,616,"
    "kingsideAttack mate mateIn1 oneMove opening,https://lichess.org/seIMDWkD#25,Scandinavian_Defense"
)
ROOKS = "1k6/8/1K6/8/8/8/8/6RR b - - 0 1"
"""After Kb8-a8 both rooks mate on the last rank."""


def read(text: str | bytes, size: int = 1 << 20) -> list[Puzzle | LeftOut]:
    data = text.encode() if isinstance(text, str) else text
    return list(read_puzzle_table((data[start : start + size] for start in range(0, len(data), size)), "puzzles.csv"))


def row(puzzle_id: str = "x", fen: str = ROOKS, moves: str = "b8a8 h1h8", rating: str = "1200", themes: str = "mate") -> str:
    return f"{puzzle_id},{fen},{moves},{rating},80,90,100,{themes},url,"


def puzzle(moves: str = "b8a8 h1h8", *, rating: int = 1_200, themes: str = "mate", fen: str = ROOKS) -> Puzzle:
    (found,) = read(f"{HEADER}\n{row(fen=fen, moves=moves, rating=str(rating), themes=themes)}\n")
    assert isinstance(found, Puzzle)
    return found


# Reading.


def test_a_row_is_read_with_the_opponents_move_first() -> None:
    (found,) = read(f"{HEADER}\n{ROW}\n")
    assert isinstance(found, Puzzle)
    assert (found.puzzle_id, found.rating) == ("000rZ", 633)
    assert found.themes == ("kingsideAttack", "mate", "mateIn1", "oneMove", "opening")
    assert found.board.turn == chess.WHITE
    assert [move.uci() for move in found.moves] == ["d4e6", "d6h2"]
    (own,) = found.own_boards()
    assert own.turn == chess.BLACK
    own.push(found.moves[1])
    assert own.is_checkmate()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("size", [1, 13, 1 << 20])
def test_columns_may_stand_in_any_order_lines_end_as_they_like_and_chunks_be_cut_anywhere(end: str, size: int) -> None:
    text = end.join(["\ufeffThemes,Rating,Moves,FEN,PuzzleId", "", f'"a b a", 700 ,b8a8 h1h8,{ROOKS},one', f"a,900,b8a8 g1g8,{ROOKS},two"])
    found = read(text, size)
    assert [(one.puzzle_id, one.rating, one.themes) for one in found if isinstance(one, Puzzle)] == [
        ("one", 700, ("a", "b")),
        ("two", 900, ("a",)),
    ]


@pytest.mark.parametrize(
    ("bad", "reason", "detail"),
    [
        (row(fen="hello"), Reason.ILLEGAL_POSITION, "hello"),
        (row(fen="8/8/8/8/8/8/8/8 w - - 0 1"), Reason.ILLEGAL_POSITION, "KING"),
        (row(fen="kK6/8/8/8/8/8/8/8 w - - 0 1"), Reason.ILLEGAL_POSITION, "OPPOSITE_CHECK"),
        (row(moves=""), Reason.NO_MOVES, "x"),
        (row(moves="b8a8"), Fault.UNFINISHED, "b8a8"),
        (row(moves="b8a8 h1h2 a8b8"), Fault.UNFINISHED, "a8b8"),
        (row(moves="b8a8 h1h9"), Reason.UNREADABLE_MOVE, "h1h9"),
        (row(moves="b8a8 Rh8#"), Reason.UNREADABLE_MOVE, "Rh8"),
        (row(moves="b8a8 h1g2"), Reason.ILLEGAL_MOVE, "h1g2"),
        (row(moves="b8b7 h1h8"), Reason.ILLEGAL_MOVE, "b8b7"),
        (row(moves="b8a8 0000"), Reason.NULL_MOVE, "0000"),
        (row(moves="b8a8 h1h8 a8b8 h8h1"), Reason.ILLEGAL_MOVE, "a8b8"),  # The game was over.
        (row(rating=""), Fault.NO_RATING, ""),
        (row(rating="12.5"), Fault.NO_RATING, "12.5"),
        (row(rating="-300"), Fault.NO_RATING, "-300"),
        (row(rating="0"), Fault.NO_RATING, "0"),
        (row(rating="4001"), Fault.NO_RATING, "4001"),
        (row(rating="\u0661\u0662\u0663\u0664"), Fault.NO_RATING, ""),
        ("x,fen", Fault.UNREADABLE_ROW, "only 2 cells"),
        (row(themes='"mate'), Fault.UNREADABLE_ROW, "unexpected end"),
        (row(puzzle_id="first", rating="1300"), Reason.DUPLICATE, "first"),
        (row(themes="a\0b"), Reason.NUL_BYTES, ""),
        (row(themes="a" * MAX_LINE_SIZE), Reason.TOO_LONG, "65,536"),
    ],
)
def test_a_row_that_is_no_puzzle_is_left_out_with_its_reason_and_the_next_is_read(bad: str, reason: Reason | Fault, detail: str) -> None:
    text = f"{HEADER}\n{row('first')}\n{bad}\n{row('last')}\n"
    first, left_out, last = read(text)
    assert isinstance(first, Puzzle)
    assert isinstance(last, Puzzle)
    assert (first.puzzle_id, last.puzzle_id) == ("first", "last")
    assert isinstance(left_out, LeftOut)
    assert (left_out.reason, left_out.offset) == (reason, text.encode().index(bad.encode()))
    assert detail in left_out.detail
    assert len(left_out.detail) <= 120


def test_a_row_that_is_no_text_is_left_out() -> None:
    found = read(f"{HEADER}\n".encode() + b"\xff\xfe\n" + row("last").encode())
    assert [one.reason if isinstance(one, LeftOut) else one.puzzle_id for one in found] == [Fault.UNREADABLE_ROW, "last"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no header and no puzzle"),
        ("\n\n", "no header and no puzzle"),
        (ROW, "no column PuzzleId, FEN, Moves, Rating, Themes"),
        ("PuzzleId,FEN,Moves,Themes\n", "no column Rating"),
        ("a\0b\n", "is not the header of a puzzle table"),
        ("a" * 70_000, "a line of more than 65,536 bytes"),
    ],
)
def test_without_a_header_nothing_is_read(text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read(text)


def test_broken_tables_never_raise_anything_else() -> None:
    rng = np.random.default_rng(0)
    whole = f"{HEADER}\n{ROW}\n{row()}\n".encode()
    for _ in range(300):
        data = bytearray(whole)
        for place in rng.integers(len(HEADER) + 1, len(data), 3):
            data[place] = int(rng.integers(256))
        for found in read(bytes(data)):
            assert isinstance(found, Puzzle) or found.reason


# Solving.


def playing(*moves: str) -> WrittenPolicy:
    """Return a policy that plays these moves wherever they are legal, the first most of all."""
    return WrittenPolicy(lambda board, move: 50.0 - moves.index(move.uci()) if move.uci() in moves else 0.0)


MATE_IN_TWO = "b8a8 h1h2 a8b8 h2h8"


@pytest.mark.parametrize(
    ("moves", "played", "solved"),
    [
        ("b8a8 h1h8", ["h1h8"], 1),
        ("b8a8 h1h8", ["g1g8"], 1),  # Another mate.
        ("b8a8 h1h8", ["h1h7"], 0),
        (MATE_IN_TWO, ["h1h2", "h2h8"], 1),
        (MATE_IN_TWO, ["h1h2", "g1g8"], 1),
        (MATE_IN_TWO, ["h1h2", "h2h3"], 0),
        (MATE_IN_TWO, ["h1h3", "h2h8"], 0),  # The first own move is wrong, the second would be right.
        (MATE_IN_TWO, ["g1g8"], 1),  # Mate a move earlier.
    ],
)
def test_every_own_move_must_be_the_solutions_or_mate(moves: str, played: Sequence[str], solved: int) -> None:
    assert solve_puzzles(partial(expected_credits, playing(*played), temperature=0.0), [puzzle(moves)]).tolist() == [solved]


def test_the_chance_at_a_temperature_worked_by_hand() -> None:
    policy = WrittenPolicy(lambda board, move: {"h1h2": math.log(4), "g1g8": math.log(3), "h2h8": math.log(5)}.get(move.uci(), 0.0))
    found = puzzle(MATE_IN_TWO)
    first, second = (board.legal_moves.count() for board in found.own_boards())
    # First own move: the solution weighs 4, the mates g1g8 and h1h8 3 and 1; second: h2h8 weighs 5, the mate g1g8 3.
    chance = (3 + 1) / (first - 2 + 4 + 3) + 4 / (first - 2 + 4 + 3) * (5 + 3) / (second - 2 + 5 + 3)
    assert solve_puzzles(partial(expected_credits, policy, temperature=1.0), [found]) == pytest.approx([chance], abs=1e-6)
    colder = (9 + 1) / (first - 2 + 16 + 9) + 16 / (first - 2 + 16 + 9) * (25 + 9) / (second - 2 + 25 + 9)
    assert solve_puzzles(partial(expected_credits, policy, temperature=0.5), [found]) == pytest.approx([colder], abs=1e-6)


def played_out(policy: NetworkPolicy, found: Puzzle) -> bool:
    """Solve one puzzle move by move, as a player would."""
    board = found.board.copy()
    for ply, solution in enumerate(found.moves):
        if ply % 2:
            batch = PositionBatch.from_boards([board])
            best = int(policy.distribution(batch, temperature=1.0).best())
            legal = sorted(board.legal_moves, key=lambda move: _id(board, move))
            board.push(legal[best])
            if board.is_checkmate():
                return True
            if legal[best] != solution:
                return False
        else:
            board.push(solution)
    return True


def _id(board: chess.Board, move: chess.Move) -> str:
    # Ids are in the order of the mover's UCI.
    if board.turn == chess.WHITE:
        return move.uci()
    return chess.Move(chess.square_mirror(move.from_square), chess.square_mirror(move.to_square), move.promotion).uci()


@pytest.fixture(scope="module")
def real_puzzles() -> list[Puzzle]:
    """Return 1,499 puzzles of Lichess."""
    if not SAMPLE_DATA:
        pytest.skip("CHESS_GRPO_SAMPLE_DATA is not set")
    (file,) = find_files([str(Path(SAMPLE_DATA) / "lichess_puzzles_1499.csv")])
    found = list(read_puzzle_table(read_chunks(file), file.name))
    assert len(found) == 1_499
    usable = [one for one in found if isinstance(one, Puzzle)]
    assert len(usable) == 1_499
    return usable


def test_real_puzzles_end_as_their_themes_say(real_puzzles: list[Puzzle]) -> None:
    counts = Counter(theme for one in real_puzzles for theme in one.themes)
    assert counts["mate"] > 300
    for one in real_puzzles:
        end = one.own_boards()[-1]
        end.push(one.moves[-1])
        assert end.is_checkmate() >= ("mate" in one.themes), "some lack a theme, none what it says"
        assert (len(one.moves) == 2) >= ("oneMove" in one.themes)


def test_real_puzzles_are_solved_as_if_played_out_one_by_one(real_puzzles: list[Puzzle]) -> None:
    policy, some = lively_policy(), real_puzzles[::20]
    found = solve_puzzles(partial(expected_credits, policy, temperature=0.0), some)
    assert found.tolist() == [float(played_out(policy, one)) for one in some]
    assert 0 < found.sum() < len(some)


def test_a_perfect_solver_solves_all_and_a_cold_one_plays_its_best_moves(real_puzzles: list[Puzzle]) -> None:
    some = real_puzzles[:15]
    own = [(board, move) for one in some for board, move in zip(one.own_boards(), one.moves[1::2], strict=True)]
    solutions = {position_key(board): move for board, move in own}
    perfect = WrittenPolicy(lambda board, move: 50.0 * (solutions[position_key(board)] == move))
    assert solve_puzzles(partial(expected_credits, perfect, temperature=0.0), some).tolist() == [1.0] * 15
    half_right = WrittenPolicy(lambda board, move: made_up_number(board, move) + 0.4 * (solutions[position_key(board)] == move))
    best = solve_puzzles(partial(expected_credits, half_right, temperature=0.0), some)
    assert 0 < best.sum() < 15
    assert solve_puzzles(partial(expected_credits, half_right, temperature=0.001), some) == pytest.approx(best, abs=0.01)


# Reporting.


def test_shares_are_by_band_and_by_each_theme() -> None:
    puzzles = [
        puzzle(rating=799, themes="mate short"),
        puzzle(rating=800, themes="mate"),
        puzzle(rating=999),
        puzzle(rating=1_450, themes=""),
    ]
    report = puzzle_report(puzzles, [1.0, 1.0, 0.0, 0.25])
    assert report.performance.rating is None
    assert {name: (share.num, share.solved) for name, share in report.by_band.items()} == {
        "600-799": (1, 1.0),
        "800-999": (2, 1.0),
        "1400-1599": (1, 0.25),
    }
    assert [(name, share.num, share.solved) for name, share in report.by_theme.items()] == [("mate", 3, 2.0), ("short", 1, 1.0)]
    assert (report.solved.num, report.solved.solved) == (4, 2.25)
    assert list(report.by_band) == ["600-799", "800-999", "1400-1599"]
    facts = report.facts()
    assert facts["by_theme"]["mate"]["share"] == pytest.approx(2 / 3)
    assert facts["performance_rating"] is None


def test_the_performance_rating_worked_by_hand() -> None:
    # 75 of 100 puzzles, and one of the two that are added: odds of 76 to 26.
    found = performance_rating([1_500] * 100, [1.0] * 75 + [0.0] * 25)
    assert found.rating == pytest.approx(1_500 + 400 * math.log10(76 / 26), abs=1e-3)
    information = 102 * (76 / 102) * (26 / 102) * (math.log(10) / 400) ** 2
    assert (found.high - found.rating, found.rating - found.low) == pytest.approx((1.959964 / math.sqrt(information),) * 2, rel=1e-5)


def test_at_the_performance_rating_as_much_is_expected_as_was_solved() -> None:
    rng = np.random.default_rng(0)
    ratings = rng.integers(500, 2_500, 300)
    solved = (rng.random(300) < 1 / (1 + 10 ** ((ratings - 1_400) / 400))).astype(float)
    found = performance_rating(ratings.tolist(), solved.tolist())
    expected = sum(1 / (1 + 10 ** ((rating - found.rating) / 400)) for rating in [*ratings, ratings.mean(), ratings.mean()])
    assert expected == pytest.approx(solved.sum() + 1, abs=1e-4)
    assert found.low < 1_400 < found.high


def test_all_solved_or_all_failed_is_a_bound_and_few_are_neither() -> None:
    # To fail on all of 100 has a chance of 5 % at p = 1 - 0.05 ** 0.01.
    chance = 1 - 0.05**0.01
    away = 400 * math.log10((1 - chance) / chance)
    failed, solved = (performance_rating([1_000] * 100, [each] * 100) for each in (0.0, 1.0))
    assert (failed.rating, failed.low, failed.high) == (None, None, pytest.approx(1_000 - away, abs=1e-3))
    assert (solved.rating, solved.low, solved.high) == (None, pytest.approx(1_000 + away, abs=1e-3), None)
    assert str(failed) == f"below {1_000 - away:.0f} (95 %), for none of 100 was solved"
    assert str(solved) == f"above {1_000 + away:.0f} (95 %), for all 100 were solved"
    assert str(performance_rating([1_000] * 3, [0.0] * 3)) == "none: 3 puzzles are too few, give at least 10"
    with pytest.raises(ValueError, match="no puzzle"):
        performance_rating([], [])
