"""Values of moves by identities and by hand, and tables that only the position decides."""

from collections.abc import Callable, Sequence
from typing import Any

import chess
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine, move_scores

from grpo.board.actions import action_id, legal_action_ids, mirror_move
from grpo.board.encoding import mover_fen, mover_view
from grpo.engine.answers import EngineError, Score
from grpo.engine.move_values import MATE_BAND, ValueTable, engine_options, value_of, value_tables
from grpo.engine.pool import EnginePool, Query

CENTIPAWNS = st.integers(-20_000, 20_000)
MATES = st.integers(1, 200)
FENS = [
    chess.STARTING_FEN,
    "r1bqkb1r/pppp1ppp/2n2n2/1B2p3/4P3/5N2/PPPP1PPP/RNBQ1RK1 b kq - 5 4",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1",
]
BOARDS = [chess.Board(fen) for fen in FENS]


def mate(moves: int) -> Score:
    """Return a forced mate; negative when the mover is mated."""
    return Score(moves, is_mate=True)


def tables(path: str, boards: Sequence[chess.Board], *, depth: int = 2, num_processes: int = 1) -> list[ValueTable | EngineError]:
    """Return the tables that a pool of its own makes."""
    with EnginePool(path, num_processes=num_processes, options=engine_options()) as pool:
        return list(value_tables(boards, pool, depth=depth))


def numbers(table: ValueTable | EngineError) -> Any:
    """Return a table as plain numbers that can be compared."""
    assert isinstance(table, ValueTable), table
    return table.moves, table.values.tolist(), table.scores


def by_move(table: ValueTable | EngineError) -> dict[str, float]:
    """Return UCI move -> value."""
    assert isinstance(table, ValueTable), table
    return dict(zip(table.moves, table.values.tolist(), strict=True))


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (Score(0), 0.5),
        (Score(100), 0.02 + 0.96 * 0.574442517),  # 1 / (1 + exp(-0.3)) = 0.574442517
        (Score(-100), 0.02 + 0.96 * 0.425557483),
        *((mate(moves), due) for moves, due in [(1, 1.0), (2, 0.99), (4, 0.985), (-1, 0.0), (-2, 0.01), (0, 0.0), (200, 0.9801)]),
    ],
)
def test_values_worked_by_hand(score: Score, expected: float) -> None:
    assert value_of(score) == pytest.approx(expected, abs=1e-9)


@given(one=CENTIPAWNS, other=CENTIPAWNS, near=MATES, far=MATES)
def test_values_rise_with_scores_any_mate_beats_any_score_and_what_is_good_for_one_side_is_as_bad_for_the_other(
    one: int, other: int, near: int, far: int
) -> None:
    (low, high), (near, far) = sorted((one, other)), sorted((near, far))
    in_order = [value_of(score) for score in (mate(-near), mate(-far), Score(low), Score(high), mate(far), mate(near))]
    assert in_order == sorted(in_order)
    assert 0 <= in_order[1] < MATE_BAND <= in_order[2]
    assert in_order[3] <= 1 - MATE_BAND < in_order[4] <= 1
    assert (in_order[4] < in_order[5]) is (near < far)
    if low < high and max(abs(low), abs(high)) < 1_000:
        assert in_order[2] < in_order[3], "and where games are decided always less"
    for score in (Score(one), mate(near)):
        assert value_of(score) + value_of(score._replace(value=-score.value)) == pytest.approx(1, abs=1e-12)


def test_a_table_has_every_legal_move_in_rising_order_of_its_id(stockfish: str, random_boards: list[chess.Board]) -> None:
    boards = random_boards[7::137]
    for board, table in zip(boards, tables(stockfish, boards, depth=1), strict=True):
        assert isinstance(table, ValueTable)
        ids = [action_id(chess.Move.from_uci(move), board.turn) for move in table.moves]
        assert ids == legal_action_ids(board)
        assert len(table.values) == len(table.scores) == len(ids)
        assert table.values.dtype == np.float32
        assert ((table.values >= 0) & (table.values <= 1)).all()


@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize("engine", ["stockfish", "fairy_stockfish"])
def test_a_value_is_the_movers_chance_after_his_move(is_mirrored: bool, engine: str, request: pytest.FixtureRequest) -> None:
    fens = ["6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "6k1/5ppp/8/8/8/8/r4PPP/6K1 w - - 0 1", "6k1/5ppp/8/8/8/8/q7/R3K3 w - - 0 1"]
    boards = [chess.Board(fen).mirror() if is_mirrored else chess.Board(fen) for fen in fens]
    found: list[dict[str, float]] = []
    for board, table in zip(boards, tables(request.getfixturevalue(engine), boards, depth=3), strict=True):
        moves = [chess.Move.from_uci(move) for move in by_move(table)]
        assert set(moves) == set(board.legal_moves)
        names = [(mirror_move(move) if is_mirrored else move).uci() for move in moves]
        found.append(dict(zip(names, by_move(table).values(), strict=True)))
    mating, mated, taking = found
    assert mating["a1a8"] == 1.0 > max(value for move, value in mating.items() if move != "a1a8")
    assert mated["g1h1"] == 0.0
    assert max(taking, key=lambda move: taking[move]) == "a1a2", "the rook takes the queen, or is lost"
    assert taking["a1a2"] > 0.65 > 0.35 > taking["e1f1"]


@pytest.mark.parametrize("engine", ["stockfish", "fairy_stockfish"])
def test_tables_depend_on_nothing_but_the_position(engine: str, request: pytest.FixtureRequest, random_boards: list[chess.Board]) -> None:
    # Not on order, processes, chunks, what was asked before, nor on the day.
    path = request.getfixturevalue(engine)
    boards = random_boards[11 :: 251 if engine == "stockfish" else 401]
    once = [numbers(table) for table in tables(path, boards)]
    assert [numbers(table) for table in tables(path, boards)] == once
    assert [numbers(table) for table in tables(path, boards[::-1])][::-1] == once
    assert [numbers(table) for table in tables(path, boards, num_processes=3)] == once
    with EnginePool(path, num_processes=2, options=engine_options()) as pool:
        pool.search(Query(fen=board.fen(), limit="depth 5") for board in boards[:5])
        assert [numbers(table) for board in boards for table in value_tables([board], pool, depth=2)] == once


@pytest.mark.parametrize("engine", ["stockfish", "fairy_stockfish"])
def test_a_position_and_its_mirror_have_the_same_values(
    engine: str, request: pytest.FixtureRequest, random_boards: list[chess.Board]
) -> None:
    # The policy sees both as one position (`encoding`), and so must the reward.
    boards = random_boards[5 :: 301 if engine == "stockfish" else 601]
    path = request.getfixturevalue(engine)
    for one, other in zip(tables(path, boards), tables(path, [board.mirror() for board in boards]), strict=True):
        assert isinstance(one, ValueTable)
        assert isinstance(other, ValueTable)
        assert one.values.tolist() == other.values.tolist()
        assert one.moves == tuple(mirror_move(chess.Move.from_uci(move)).uci() for move in other.moves)


@pytest.mark.parametrize(
    ("fen", "drawing"),
    [
        ("7k/8/6K1/8/8/8/8/5Q2 w - - 0 1", {"f1f7", "f1c4"}),  # Stalemate.
        ("8/8/8/3k4/8/8/3p4/2B1K3 w - - 0 1", {"e1d2", "c1d2"}),  # A bishop alone.
        ("7k/5ppp/8/8/8/8/P7/1K6 w - - 99 80", {"b1a1", "b1b2", "b1c1", "b1c2"}),  # The hundredth half-move.
        ("8/k7/8/8/8/8/6pK/8 b - - 0 1", {"g2g1b", "g2g1n"}),
    ],
)
@pytest.mark.parametrize("said", ["cp 900", "mate -3"])
def test_moves_that_draw_by_the_rules_are_a_half_whatever_the_engine_says(
    fen: str, drawing: set[str], said: str, scripted: Callable[..., ScriptedEngine]
) -> None:
    board = chess.Board(fen)
    view = mover_view(board)
    liar = scripted(scores={move.uci(): said for move in view.legal_moves}, positions=[mover_fen(board)])
    with EnginePool(liar.path, num_processes=1, options=engine_options()) as pool:
        [table] = value_tables([board], pool, depth=1)
    assert {move for move, value in by_move(table).items() if value == 0.5} == drawing


def test_the_search_is_of_the_movers_view_and_the_scores_are_the_engines(scripted: Callable[..., ScriptedEngine]) -> None:
    black = BOARDS[1]
    engine = scripted()
    [table] = tables(engine.path, [black])
    assert isinstance(table, ValueTable)
    assert [search["fen"] for search in engine.searches()] == [mover_fen(black)] == [mover_view(black).fen()]
    said = {move: score for score, move in move_scores(mover_fen(black), sorted(m.uci() for m in mover_view(black).legal_moves), "")}
    for move, score in zip(table.moves, table.scores, strict=True):
        assert score == Score(said[mirror_move(chess.Move.from_uci(move)).uci()])
