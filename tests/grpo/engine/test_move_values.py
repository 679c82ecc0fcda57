"""Values of moves by identities and by hand, and tables that only the position decides."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import chess
import chess.engine
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from grpo.board import MAX_LEGAL_MOVES
from grpo.board.actions import action_id, legal_action_ids, mirror_move
from grpo.board.draws import drawing_moves
from grpo.board.encoding import mover_fen, mover_view
from grpo.engine.answers import EngineError, Score
from grpo.engine.identity import EngineMissingError
from grpo.engine.move_values import MATE_BAND, NUM_DEEP, ValueTable, _capped, engine_options, try_engine, value_of, value_tables
from grpo.engine.pool import EnginePool, Query

CENTIPAWNS = st.integers(-20_000, 20_000)
MATES = st.integers(1, 200)


def mate(moves: int) -> Score:
    return Score(moves, is_mate=True)


def tables(path: str, boards: Sequence[chess.Board], *, depth: int = 2, num_processes: int = 1) -> list[ValueTable | EngineError]:
    with EnginePool(path, num_processes=num_processes, options=engine_options()) as pool:
        return list(value_tables(boards, pool, depth=depth))


def numbers(table: ValueTable | EngineError) -> Any:
    assert isinstance(table, ValueTable), table
    return table.moves, table.values.tolist(), table.scores


def by_move(table: ValueTable | EngineError) -> dict[str, float]:
    assert isinstance(table, ValueTable), table
    return dict(zip(table.moves, table.values.tolist(), strict=True))


@pytest.mark.parametrize(
    ("fault", "max_lines", "reason"),
    [
        ({"kind": "last words"}, 500, "The network file was not loaded"),
        ({"kind": "depth 1"}, 500, "depth 1 instead of 3"),
        ({"kind": "castles as Chess960"}, 500, "e1a1, e1h1 is not legal; UCI writes this castling as e1c1"),
        ({"kind": "none"}, 64, "scores at most 64 moves"),
        ({"kind": "half of the moves"}, 500, "scored 109 of 218 moves"),
    ],
)
def test_an_engine_that_cannot_value_every_move_is_refused_with_the_reason(
    fault: dict[str, Any], max_lines: int, reason: str, scripted: Callable[..., ScriptedEngine]
) -> None:
    engine = scripted({**fault, "times": 99}, multi_pv=max_lines)
    with pytest.raises(EngineMissingError, match=rf"{reason}.*; install Stockfish"):
        try_engine(engine.path, depth=3)


def test_an_engine_in_order_is_not_refused(stockfish: str, scripted: Callable[..., ScriptedEngine]) -> None:
    for path in (stockfish, scripted({"kind": "crash"}).path, scripted(multi_pv=MAX_LEGAL_MOVES).path):
        try_engine(path, depth=2)


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


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_a_value_is_the_movers_chance_after_his_move(is_mirrored: bool, stockfish: str) -> None:
    fens = ["6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "6k1/5ppp/8/8/8/8/r4PPP/6K1 w - - 0 1", "6k1/5ppp/8/8/8/8/q7/R3K3 w - - 0 1"]
    boards = [chess.Board(fen).mirror() if is_mirrored else chess.Board(fen) for fen in fens]
    found: list[dict[str, float]] = []
    for table in tables(stockfish, boards, depth=3):
        moves = [chess.Move.from_uci(move) for move in by_move(table)]
        names = [(mirror_move(move) if is_mirrored else move).uci() for move in moves]
        found.append(dict(zip(names, by_move(table).values(), strict=True)))
    mating, mated, taking = found
    assert mating["a1a8"] == 1.0 > max(value for move, value in mating.items() if move != "a1a8")
    assert mated["g1h1"] == 0.0
    assert max(taking, key=lambda move: taking[move]) == "a1a2", "the rook takes the queen, or is lost"
    assert taking["a1a2"] > 0.65 > 0.35 > taking["e1f1"]


def test_tables_depend_on_nothing_but_the_position(stockfish: str, random_boards: list[chess.Board]) -> None:
    # Not on order, processes, chunks, nor what was asked before.
    boards = random_boards[11::501]
    once = [numbers(table) for table in tables(stockfish, boards)]
    assert [numbers(table) for table in tables(stockfish, boards[::-1], num_processes=3)][::-1] == once
    with EnginePool(stockfish, num_processes=2, options=engine_options()) as pool:
        pool.search(Query(fen=board.fen(), limit="depth 5") for board in boards[:5])
        assert [numbers(table) for board in boards for table in value_tables([board], pool, depth=2)] == once


def test_a_table_has_all_legal_moves_by_rising_id_and_a_position_and_its_mirror_have_the_same_values(
    stockfish: str, random_boards: list[chess.Board]
) -> None:
    # The policy sees both as one position (`encoding`), and so must the reward.
    boards = random_boards[5::401]
    mirrored = tables(stockfish, [board.mirror() for board in boards])
    for board, one, other in zip(boards, tables(stockfish, boards), mirrored, strict=True):
        assert isinstance(one, ValueTable)
        assert isinstance(other, ValueTable)
        moves = [chess.Move.from_uci(move) for move in one.moves]
        assert [action_id(move, board.turn) for move in moves] == legal_action_ids(board)
        assert [mirror_move(move).uci() for move in moves] == list(other.moves)
        assert one.values.tolist() == other.values.tolist()
        assert one.values.dtype == np.float32


def test_the_best_moves_at_depth_1_have_the_scores_of_a_deep_search_and_the_others_keep_their_order_below(
    stockfish: str, random_boards: list[chess.Board]
) -> None:
    boards = [board.copy(stack=False) for board in random_boards[7::101] if board.turn and board.legal_moves.count() > NUM_DEEP]
    assert len(boards) > 10
    with chess.engine.SimpleEngine.popen_uci(stockfish) as engine:
        engine.configure({"Hash": 1, "Threads": 1})
        for board, table in zip(boards, tables(stockfish, boards, depth=4), strict=True):
            assert isinstance(table, ValueTable)
            drawn = drawing_moves(board)

            def search(moves: Sequence[chess.Move], depth: int, board: chess.Board = board) -> dict[str, float]:
                # The same `game`, so that no ucinewgame comes between the two searches.
                found = engine.analyse(board, chess.engine.Limit(depth=depth), game=board.fen(), root_moves=moves, multipv=len(moves))
                return {info["pv"][0].uci(): value_of(score_of(info["score"].relative)) for info in found}

            shallow = search(list(board.legal_moves), 1)
            best = sorted(table.moves, key=lambda move: shallow[move], reverse=True)[:NUM_DEEP]
            deep = search([chess.Move.from_uci(move) for move in best], 4)
            found = {move: value for move, value in by_move(table).items() if chess.Move.from_uci(move) not in drawn}
            assert {move: found[move] for move in best if move in found} == pytest.approx(
                {move: deep[move] for move in best if move in found}
            )
            others = sorted((move for move in found if move not in best), key=lambda move: shallow[move], reverse=True)
            assert found[others[0]] < min(deep.values()) or min(deep.values()) == 0
            for better, worse in itertools.pairwise(others):
                # Below being mated in n there are n - 1 values.
                assert found[better] >= found[worse]
                assert (found[better] > found[worse]) is (shallow[better] > shallow[worse]) or min(deep.values()) < MATE_BAND


def test_capped_scores_worked_by_hand() -> None:
    deep = {"a": Score(50), "b": Score(300)}
    shallow = {"a": Score(0), "b": Score(0), "c": Score(-400), "d": Score(200), "e": Score(-400), "f": Score(49), "g": mate(-3)}
    # d and f would beat the lowest deep score; c and e are as bad as depth 1 says.
    assert _capped(shallow, deep) == deep | {"d": Score(49), "f": Score(48), "c": Score(-400), "e": Score(-400), "g": mate(-3)}
    mated = {"a": mate(-2), "b": Score(9), "c": mate(4), "d": mate(5)}
    assert _capped(mated, {"a": mate(-3)}) == {"a": mate(-3), "c": mate(-2), "d": mate(-1), "b": mate(-1)}
    # Depth 1 sees every mate in 1.
    mating = {"a": mate(1), "b": mate(1), "c": Score(900), "d": Score(-9)}
    assert _capped(mating, {"a": mate(1)}) == {"a": mate(1), "b": mate(1), "c": Score(900), "d": Score(-9)}
    assert _capped(mating, {"c": Score(30)}) == {"a": mate(1), "b": mate(1), "c": Score(30), "d": Score(-9)}


SCORES = st.one_of(st.builds(Score, st.integers(-40, 40)), st.builds(mate, st.integers(-4, 4).filter(bool)))


@settings(max_examples=60)
@given(shallow=st.dictionaries(st.sampled_from("abcdefgh"), SCORES, min_size=2), data=st.data())
def test_a_move_that_only_depth_1_has_seen_is_worth_no_more_than_there_and_unless_it_mates_less_than_all_that_were_searched_deeply(
    shallow: dict[str, Score], data: st.DataObject
) -> None:
    searched = data.draw(st.lists(st.sampled_from(sorted(shallow)), min_size=1, unique=True))
    deep = {move: data.draw(SCORES) for move in searched}
    found = {move: value_of(score) for move, score in _capped(shallow, deep).items()}
    assert found.keys() == shallow.keys()
    assert all(found[move] == value_of(score) for move, score in deep.items())
    lowest, others = min(map(value_of, deep.values())), shallow.keys() - deep.keys()
    for move in others:
        assert found[move] <= value_of(shallow[move])
        assert found[move] < lowest or found[move] == 0.0 or found[move] == value_of(shallow[move]) == 1.0
        for other in others:
            assert (found[move] > found[other]) is (value_of(shallow[move]) > value_of(shallow[other])) or found[other] == 0.0


def score_of(score: chess.engine.Score) -> Score:
    moves = score.mate()
    return Score(score.score() or 0) if moves is None else mate(moves)


def after(fen: str, moves: str = "") -> chess.Board:
    board = chess.Board(fen)
    for move in moves.split():
        board.push_uci(move)
    return board


@pytest.mark.parametrize(
    ("board", "drawing"),
    [
        (after("7k/8/6K1/8/8/8/8/5Q2 w - - 0 1"), {"f1f7", "f1c4"}),  # Stalemate.
        (after("8/k7/8/8/8/8/6pK/8 b - - 0 1"), {"g2g1b", "g2g1n"}),
        (after(chess.STARTING_FEN, "g1f3 g8f6 f3g1"), {"f6g8"}),
    ],
)
@pytest.mark.parametrize("said", ["cp 900", "mate -3"])
def test_moves_that_draw_by_the_rules_or_repeat_are_a_half_whatever_the_engine_says(
    board: chess.Board, drawing: set[str], said: str, scripted: Callable[..., ScriptedEngine]
) -> None:
    liar = scripted(scores={move.uci(): said for move in mover_view(board).legal_moves}, positions=[mover_fen(board)])
    [table] = tables(liar.path, [board])
    assert {move for move, value in by_move(table).items() if value == 0.5} == drawing
