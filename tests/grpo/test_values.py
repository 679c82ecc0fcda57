"""Values of moves: the score transform by its identities, and tables that only the position decides."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import chess
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from grpo.actions import action_id, legal_action_ids, mirror_move
from grpo.config import ValuesConfig
from grpo.engine import EngineError, EnginePool, Score
from grpo.values import ValueTable, engine_options, value_tables, win_probability

SLOPE, BAND = 0.003, 0.02
CENTIPAWNS = st.integers(-20_000, 20_000)
MATES = st.integers(1, 200)
CONFIG = ValuesConfig(logistic_slope=SLOPE, mate_band=BAND)
FENS = [
    chess.STARTING_FEN,
    "r1bqkb1r/pppp1ppp/2n2n2/1B2p3/4P3/5N2/PPPP1PPP/RNBQ1RK1 b kq - 5 4",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1",
]


def probability(score: Score) -> float:
    """Return the win probability of a score under the usual numbers."""
    return win_probability(score, logistic_slope=SLOPE, mate_band=BAND)


def tables(path: str, boards: Sequence[chess.Board], *, depth: int = 2, num_processes: int = 1) -> list[ValueTable | EngineError]:
    """Return the tables that a pool of its own makes."""
    with EnginePool(path, num_processes=num_processes, options=engine_options(CONFIG)) as pool:
        return list(value_tables(boards, pool, CONFIG, depth=depth))


def numbers(table: ValueTable | EngineError) -> Any:
    """Return a table as plain numbers that can be compared."""
    assert isinstance(table, ValueTable), table
    return table.moves, table.win_probabilities.tolist(), table.centipawns, table.mate_in


# The transform.


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (Score(0), 0.5),
        (Score(100), 0.02 + 0.96 * 0.574442517),  # 1 / (1 + exp(-0.3)) = 0.574442517
        (Score(-100), 0.02 + 0.96 * 0.425557483),
        (Score(1, is_mate=True), 1.0),
        (Score(2, is_mate=True), 0.99),
        (Score(4, is_mate=True), 0.985),
        (Score(-1, is_mate=True), 0.0),
        (Score(-2, is_mate=True), 0.01),
        (Score(0, is_mate=True), 0.0),
    ],
)
def test_win_probabilities_worked_by_hand(score: Score, expected: float) -> None:
    assert probability(score) == pytest.approx(expected, abs=1e-9)


@settings(derandomize=True)
@given(CENTIPAWNS, MATES)
def test_the_two_players_win_probabilities_sum_to_one(centipawns: int, mate_in: int) -> None:
    assert probability(Score(centipawns)) + probability(Score(-centipawns)) == pytest.approx(1, abs=1e-12)
    assert probability(Score(mate_in, is_mate=True)) + probability(Score(-mate_in, is_mate=True)) == pytest.approx(1, abs=1e-12)


@settings(derandomize=True)
@given(CENTIPAWNS, CENTIPAWNS)
def test_a_higher_score_is_never_worth_less(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert probability(Score(low)) <= probability(Score(high))
    if low < high and max(abs(low), abs(high)) < 5_000:
        assert probability(Score(low)) < probability(Score(high)), "and within 50 pawns always more"


@settings(derandomize=True)
@given(CENTIPAWNS, MATES, MATES)
def test_any_mate_beats_any_score_and_a_nearer_mate_a_farther_one(centipawns: int, one: int, other: int) -> None:
    near, far = sorted((one, other))
    assert 1 >= probability(Score(near, is_mate=True)) >= probability(Score(far, is_mate=True)) > 1 - BAND
    assert probability(Score(centipawns)) <= 1 - BAND
    assert (probability(Score(near, is_mate=True)) > probability(Score(far, is_mate=True))) is (near < far)
    assert 0 <= probability(Score(-near, is_mate=True)) < BAND <= probability(Score(centipawns))


def test_without_a_band_the_transform_is_the_logistic_function() -> None:
    for centipawns in (-700, -30, 0, 5, 1_234):
        expected = 1 / (1 + math.exp(-0.004 * centipawns))
        assert win_probability(Score(centipawns), logistic_slope=0.004, mate_band=1e-15) == pytest.approx(expected, abs=1e-12)


def test_a_won_position_still_has_a_gradient() -> None:
    # A queen up against a queen and a rook up: 0.9 % apart in Stockfish's own win probability, here five times as much.
    assert probability(Score(1_400)) - probability(Score(900)) > 0.045


@pytest.mark.parametrize("centipawns", [-(2**31), -300_000, 300_000, 2**31 - 1])
def test_a_score_beyond_any_engines_is_still_a_probability(centipawns: int) -> None:
    assert probability(Score(centipawns)) == pytest.approx(BAND if centipawns < 0 else 1 - BAND)


# The tables.


def test_a_table_has_every_legal_move_in_rising_order_of_its_id(stockfish: str, random_boards: list[chess.Board]) -> None:
    boards = random_boards[7::137]
    for board, table in zip(boards, tables(stockfish, boards, depth=1), strict=True):
        assert isinstance(table, ValueTable)
        ids = [action_id(chess.Move.from_uci(move), board.turn) for move in table.moves]
        assert ids == legal_action_ids(board)
        assert len(table.win_probabilities) == len(table.centipawns) == len(table.mate_in) == len(ids)
        assert table.win_probabilities.dtype == np.float32
        assert ((table.win_probabilities >= 0) & (table.win_probabilities <= 1)).all()


def test_the_position_with_218_moves_has_218_values(stockfish: str) -> None:
    [table] = tables(stockfish, [chess.Board("R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1")], depth=1)
    assert isinstance(table, ValueTable)
    assert len(table.moves) == len(set(table.moves)) == 218


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_a_value_is_the_movers_chance_after_his_move(is_mirrored: bool, stockfish: str) -> None:
    fens = ["6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "6k1/5ppp/8/8/8/8/r4PPP/6K1 w - - 0 1", "6k1/5ppp/8/8/8/8/q7/R3K3 w - - 0 1"]
    boards = [chess.Board(fen).mirror() if is_mirrored else chess.Board(fen) for fen in fens]
    by_move: list[dict[str, tuple[float, int | None, int | None]]] = []
    for board, table in zip(boards, tables(stockfish, boards, depth=3), strict=True):
        assert isinstance(table, ValueTable)
        moves = [chess.Move.from_uci(move) for move in table.moves]
        names = [(mirror_move(move) if is_mirrored else move).uci() for move in moves]
        assert set(moves) == set(board.legal_moves)
        by_move.append(dict(zip(names, zip(table.win_probabilities.tolist(), table.centipawns, table.mate_in, strict=True), strict=True)))
    mating, mated, taking = by_move
    assert mating["a1a8"] == (1.0, None, 1)
    assert mated["g1h1"] == (0.0, None, -1)
    assert max(taking, key=lambda move: taking[move][0]) == "a1a2", "the rook takes the queen, or is lost"
    assert taking["a1a2"][0] > 0.7 > 0.3 > taking["e1f1"][0]


def test_each_value_is_the_transform_of_the_score_beside_it(stockfish: str) -> None:
    for table in tables(stockfish, [*map(chess.Board, FENS), chess.Board("6k1/5ppp/8/8/8/8/1q6/R3K3 w - - 0 1")], depth=3):
        assert isinstance(table, ValueTable)
        for value, centipawns, mate_in in zip(table.win_probabilities, table.centipawns, table.mate_in, strict=True):
            assert (centipawns is None) is not (mate_in is None)
            score = Score(mate_in, is_mate=True) if mate_in is not None else Score(centipawns or 0)
            expected = win_probability(score, logistic_slope=CONFIG.logistic_slope, mate_band=CONFIG.mate_band)
            assert value == np.float32(expected)


def test_tables_depend_neither_on_the_order_of_the_boards_nor_on_the_number_of_processes(
    stockfish: str, random_boards: list[chess.Board]
) -> None:
    boards = random_boards[11::101]
    once = [numbers(table) for table in tables(stockfish, boards)]
    assert [numbers(table) for table in tables(stockfish, boards[::-1])][::-1] == once
    assert [numbers(table) for table in tables(stockfish, boards, num_processes=3)] == once
    assert [numbers(table) for board in boards[:3] for table in tables(stockfish, [board])] == once[:3]


def test_more_boards_than_one_batch_come_out_in_order(scripted: Callable[..., ScriptedEngine], random_boards: list[chess.Board]) -> None:
    boards = [board for board in random_boards if board.legal_moves.count() < 12][:300]
    made = tables(scripted().path, boards, num_processes=2)
    assert len(made) == len(boards) > 256
    for board, table in zip(boards, made, strict=True):
        assert isinstance(table, ValueTable)
        assert set(table.moves) == {move.uci() for move in board.legal_moves}


def test_a_position_and_its_mirror_have_the_same_values(stockfish: str, random_boards: list[chess.Board]) -> None:
    # The policy sees both as one position (`encoding`), and so must the reward.
    boards = random_boards[5::151]
    own = tables(stockfish, boards)
    mirrored = tables(stockfish, [board.mirror() for board in boards])
    differences = []
    for one, other in zip(own, mirrored, strict=True):
        assert isinstance(one, ValueTable)
        assert isinstance(other, ValueTable)
        differences.append(np.abs(one.win_probabilities - other.win_probabilities).max())
    assert max(differences) == 0, f"{np.count_nonzero(differences)} of {len(boards)} positions differ, by up to {max(differences):.3f}"


@pytest.mark.parametrize("kind", ["crash", "none", "half of the moves", "illegal best move", "a move that is none"])
def test_after_one_fault_the_tables_are_those_of_a_run_without_it(kind: str, scripted: Callable[..., ScriptedEngine]) -> None:
    boards = [chess.Board(fen) for fen in FENS]
    expected = [numbers(table) for table in tables(scripted().path, boards)]
    faulty = scripted({"kind": kind, "nth": 2})
    assert [numbers(table) for table in tables(faulty.path, boards)] == expected


@pytest.mark.parametrize("kind", ["crash", "half of the moves", "a move that is none"])
def test_a_board_that_always_fails_has_no_table_and_costs_no_other_board_its_own(
    kind: str, scripted: Callable[..., ScriptedEngine]
) -> None:
    boards = [chess.Board(fen) for fen in FENS]
    expected = [numbers(table) for table in tables(scripted().path, boards)]
    made = tables(scripted({"kind": kind, "fen": FENS[2], "times": 99}).path, boards)
    assert isinstance(made[2], EngineError)
    assert FENS[2] in str(made[2])
    assert [numbers(table) for index, table in enumerate(made) if index != 2] == [
        numbers for index, numbers in enumerate(expected) if index != 2
    ]
