"""Values of moves: the transforms by their identities and by hand, and tables that only the position decides."""

import math
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
from grpo.engine.identity import EngineMissingError
from grpo.engine.move_values import TRANSFORMS, ValueTable, engine_options, value_tables
from grpo.engine.pool import EnginePool, Query
from grpo.settings.tree import ValuesConfig

SLOPE, BAND, SHARE = 0.003, 0.02, 0.1
CENTIPAWNS = st.integers(-20_000, 20_000)
MATES = st.integers(1, 200)
LOGISTIC, WDL, CLIPPED = (
    ValuesConfig(transform=name, logistic_slope=SLOPE, mate_band=BAND, wdl_logistic_fraction=SHARE)  # type: ignore[arg-type]
    for name in ("logistic", "wdl", "clipped_centipawns")
)
CONFIGS = pytest.mark.parametrize("config", [LOGISTIC, WDL, CLIPPED], ids=lambda config: config.transform)
CHANCES = pytest.mark.parametrize("config", [LOGISTIC, WDL], ids=lambda config: config.transform)
FENS = [
    chess.STARTING_FEN,
    "r1bqkb1r/pppp1ppp/2n2n2/1B2p3/4P3/5N2/PPPP1PPP/RNBQ1RK1 b kq - 5 4",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1",
]
BOARDS = [chess.Board(fen) for fen in FENS]


def values_of(config: ValuesConfig, *scores: Score) -> list[float]:
    """Return the values of these scores, as if they were all moves of one position."""
    return TRANSFORMS[config.transform](scores, config)


def mate(moves: int) -> Score:
    """Return a forced mate; negative when the mover is mated."""
    return Score(moves, is_mate=True)


def tables(
    path: str, boards: Sequence[chess.Board], *, depth: int = 2, num_processes: int = 1, config: ValuesConfig = LOGISTIC
) -> list[ValueTable | EngineError]:
    """Return the tables that a pool of its own makes."""
    with EnginePool(path, num_processes=num_processes, options=engine_options(config)) as pool:
        return list(value_tables(boards, pool, config, depth=depth))


def numbers(table: ValueTable | EngineError) -> Any:
    """Return a table as plain numbers that can be compared."""
    assert isinstance(table, ValueTable), table
    return table.moves, table.values.tolist(), table.scores


def by_move(table: ValueTable | EngineError) -> dict[str, float]:
    """Return UCI move -> value."""
    assert isinstance(table, ValueTable), table
    return dict(zip(table.moves, table.values.tolist(), strict=True))


# The transforms.


@pytest.mark.parametrize(
    ("config", "score", "expected"),
    [
        (LOGISTIC, Score(0), 0.5),
        (LOGISTIC, Score(100), 0.02 + 0.96 * 0.574442517),  # 1 / (1 + exp(-0.3)) = 0.574442517
        (LOGISTIC, Score(-100), 0.02 + 0.96 * 0.425557483),
        (LOGISTIC, Score(100, expected=0.9), 0.02 + 0.96 * 0.574442517),  # What the engine expects is no part of it.
        (WDL, Score(0, expected=0.5), 0.5),
        (WDL, Score(100, expected=0.8), 0.02 + 0.96 * (0.9 * 0.8 + 0.1 * 0.574442517)),
        (WDL, Score(100), 0.02 + 0.96 * (0.9 * 0.591025897 + 0.1 * 0.574442517)),  # 1 / (1 + exp(-0.368208)) = 0.591025897
    ],
)
def test_values_worked_by_hand(config: ValuesConfig, score: Score, expected: float) -> None:
    assert values_of(config, score) == pytest.approx([expected], abs=1e-6)


@CHANCES
@pytest.mark.parametrize(
    ("moves", "expected"), [(1, 1.0), (2, 0.99), (4, 0.985), (-1, 0.0), (-2, 0.01), (-4, 0.015), (0, 0.0), (200, 0.9801)]
)
def test_mates_worked_by_hand(config: ValuesConfig, moves: int, expected: float) -> None:
    assert values_of(config, mate(moves)) == pytest.approx([expected], abs=1e-12)
    assert values_of(config, Score(moves, is_mate=True, expected=0.5)) == values_of(config, mate(moves))


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([Score(30)], [0.5]),
        # 1/2 + clip((after - before) / 1000, -2, 2) / 4, before being the best: 0, -100, -1000, -2000 and -3000 cp.
        ([Score(30), Score(-70), Score(-970), Score(-1_970), Score(-2_970)], [0.5, 0.475, 0.25, 0.0, 0.0]),
        ([Score(-400), Score(-600)], [0.5, 0.45]),
        ([mate(1), mate(2), mate(7), Score(8_900)], [0.5, 0.475, 0.35, 0.25]),  # 9,900, 9,800 and 9,300.
        ([Score(0), mate(-1)], [0.5, 0.0]),
        ([mate(-3), mate(-1)], [0.5, 0.45]),  # -9,700 and -9,900.
        ([Score(0, expected=0.5), Score(-200, expected=0.1)], [0.5, 0.45]),
    ],
)
def test_the_field_notes_reward_worked_by_hand(scores: list[Score], expected: list[float]) -> None:
    assert values_of(CLIPPED, *scores) == pytest.approx(expected, abs=1e-12)


@given(st.lists(CENTIPAWNS, min_size=1, max_size=30))
def test_the_clipped_reward_is_the_formula_and_the_best_move_of_any_position_has_a_half(centipawns: list[int]) -> None:
    values = values_of(CLIPPED, *map(Score, centipawns))
    rewards = np.clip((np.array(centipawns) - max(centipawns)) / 1_000, -2, 2)
    assert values == pytest.approx((0.5 + rewards / 4).tolist(), abs=1e-12)
    assert max(values) == values[centipawns.index(max(centipawns))] == 0.5


@CHANCES
@given(centipawns=CENTIPAWNS, mate_in=MATES, wins=st.integers(0, 1_000), share=st.floats(0, 1))
def test_what_is_good_for_one_side_is_as_bad_for_the_other(
    config: ValuesConfig, centipawns: int, mate_in: int, wins: int, share: float
) -> None:
    losses = int(share * (1_000 - wins))
    draws = 1_000 - wins - losses
    expected, opponents = (2 * wins + draws) / 2_000, (2 * losses + draws) / 2_000
    for own, opponent in (
        (Score(centipawns), Score(-centipawns)),
        (Score(centipawns, expected=expected), Score(-centipawns, expected=opponents)),
        (mate(mate_in), mate(-mate_in)),
    ):
        assert sum(values_of(config, own) + values_of(config, opponent)) == pytest.approx(1, abs=1e-12)


@CONFIGS
@given(one=CENTIPAWNS, other=CENTIPAWNS)
def test_a_higher_score_is_never_worth_less(config: ValuesConfig, one: int, other: int) -> None:
    low, high = sorted((one, other))
    worse, better = values_of(config, Score(low), Score(high))
    assert 0 <= worse <= better <= 1
    if low < high and max(abs(low), abs(high)) < 1_000:
        assert worse < better, "and where games are decided always less"


@given(centipawns=st.integers(-3_000, 3_000), one=st.integers(0, 2_000), other=st.integers(0, 2_000))
def test_of_equal_centipawns_the_better_chances_are_worth_more(centipawns: int, one: int, other: int) -> None:
    low, high = sorted((one, other))
    worse, better = values_of(WDL, Score(centipawns, expected=low / 2_000), Score(centipawns, expected=high / 2_000))
    assert (worse < better) is (low < high)


@CHANCES
@given(centipawns=CENTIPAWNS, one=MATES, other=MATES)
def test_any_mate_beats_any_score_and_a_nearer_mate_a_farther_one(config: ValuesConfig, centipawns: int, one: int, other: int) -> None:
    near, far = sorted((one, other))
    nearer, farther, score, mated = values_of(config, mate(near), mate(far), Score(centipawns, expected=1.0), mate(-near))
    assert 1 >= nearer >= farther > 1 - BAND >= score
    assert (nearer > farther) is (near < far)
    assert 0 <= mated < BAND <= score


@CONFIGS
def test_a_won_position_still_has_a_gradient(config: ValuesConfig) -> None:
    # To Stockfish both are won: 1.000. A queen up, and a queen and a rook up.
    less, more = values_of(config, Score(900, expected=1.0), Score(1_500, expected=1.0))
    assert more - less > 0.004
    farther, nearer = values_of(config, mate(5), mate(2))
    assert nearer - farther > 0.004
    worse, bad = values_of(config, Score(-1_500, expected=0.0), Score(-900, expected=0.0))
    assert bad - worse > 0.004


@pytest.mark.parametrize("centipawns", [-(2**31), -300_000, 300_000, 2**31 - 1])
@CONFIGS
def test_a_score_beyond_any_engines_is_still_a_value(config: ValuesConfig, centipawns: int) -> None:
    [alone] = values_of(config, Score(centipawns))
    assert alone == pytest.approx(0.5 if config is CLIPPED else BAND if centipawns < 0 else 1 - BAND, abs=0.02)
    assert all(0 <= value <= 1 for value in values_of(config, Score(centipawns), Score(0), mate(-1)))


def test_without_a_band_and_without_chances_the_transforms_are_logistic_functions() -> None:
    logistic = ValuesConfig(logistic_slope=0.004, mate_band=1e-15)
    lichess = ValuesConfig(transform="wdl", wdl_logistic_fraction=1e-15, mate_band=1e-15)
    for centipawns in (-700, -30, 0, 5, 1_234):
        for config, slope in ((logistic, 0.004), (lichess, 0.00368208)):
            assert values_of(config, Score(centipawns)) == pytest.approx([1 / (1 + math.exp(-slope * centipawns))], abs=1e-12)


# The tables.


def test_a_table_has_every_legal_move_in_rising_order_of_its_id(stockfish: str, random_boards: list[chess.Board]) -> None:
    boards = random_boards[7::137]
    for board, table in zip(boards, tables(stockfish, boards, depth=1), strict=True):
        assert isinstance(table, ValueTable)
        ids = [action_id(chess.Move.from_uci(move), board.turn) for move in table.moves]
        assert ids == legal_action_ids(board)
        assert len(table.values) == len(table.scores) == len(ids)
        assert table.values.dtype == np.float32
        assert ((table.values >= 0) & (table.values <= 1)).all()


@pytest.mark.parametrize("engine", ["stockfish", "fairy_stockfish"])
def test_the_position_with_218_moves_has_218_values(engine: str, request: pytest.FixtureRequest) -> None:
    [table] = tables(request.getfixturevalue(engine), [chess.Board("R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1")], depth=1)
    assert len(by_move(table)) == 218


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


def test_stockfish_gives_its_own_chances_and_fairy_stockfish_gets_those_of_lichess(stockfish: str, fairy_stockfish: str) -> None:
    [own] = tables(stockfish, BOARDS[1:2], config=WDL)
    [other] = tables(fairy_stockfish, BOARDS[1:2], config=WDL)
    assert isinstance(own, ValueTable)
    assert isinstance(other, ValueTable)
    assert all(score.expected is not None for score in own.scores)
    assert all(score.expected is None for score in other.scores)
    assert own.moves == other.moves
    assert other.values.tolist() == np.array(values_of(WDL, *other.scores), dtype=np.float32).tolist()


@pytest.mark.parametrize("engine", ["stockfish", "fairy_stockfish"])
def test_tables_depend_on_nothing_but_the_position(engine: str, request: pytest.FixtureRequest, random_boards: list[chess.Board]) -> None:
    # Not on order, processes, chunks, what was asked before, nor on the day.
    path = request.getfixturevalue(engine)
    boards = random_boards[11 :: 251 if engine == "stockfish" else 401]
    once = [numbers(table) for table in tables(path, boards)]
    assert [numbers(table) for table in tables(path, boards)] == once
    assert [numbers(table) for table in tables(path, boards[::-1])][::-1] == once
    assert [numbers(table) for table in tables(path, boards, num_processes=3)] == once
    with EnginePool(path, num_processes=2, options=engine_options(LOGISTIC)) as pool:
        pool.search(Query(fen=board.fen(), limit="depth 5", is_fresh=False) for board in boards[:5])
        chunked = [
            numbers(table)
            for start in range(0, len(boards), 7)
            for table in value_tables(boards[start : start + 7], pool, LOGISTIC, depth=2)
        ]
    assert chunked == once


def test_tables_of_several_processes_come_out_in_order(scripted: Callable[..., ScriptedEngine], random_boards: list[chess.Board]) -> None:
    boards = [board for board in random_boards[:1_000] if board.legal_moves.count() < 12 and board.halfmove_clock < 90][:40]
    made = tables(scripted().path, boards, num_processes=2)
    assert len(made) == len(boards) == 40
    for board, table in zip(boards, made, strict=True):
        assert set(by_move(table)) == {move.uci() for move in board.legal_moves}


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


# What the rules decide, no engine does.


@pytest.mark.parametrize(
    ("fen", "drawing"),
    [
        ("7k/8/6K1/8/8/8/8/5Q2 w - - 0 1", {"f1f7", "f1c4"}),  # Stalemate.
        ("8/8/8/3k4/8/8/3p4/2B1K3 w - - 0 1", {"e1d2", "c1d2"}),  # A bishop alone.
        ("7k/5ppp/8/8/8/8/P7/1K6 w - - 99 80", {"b1a1", "b1b2", "b1c1", "b1c2"}),  # The hundredth half-move.
        ("8/k7/8/8/8/8/6pK/8 b - - 0 1", {"g2g1b", "g2g1n"}),
    ],
)
@pytest.mark.parametrize("said", ["cp 900 wdl 990 10 0", "mate -3"])
def test_moves_that_draw_by_the_rules_are_a_half_whatever_the_engine_says(
    fen: str, drawing: set[str], said: str, scripted: Callable[..., ScriptedEngine]
) -> None:
    board = chess.Board(fen)
    view = mover_view(board)
    liar = scripted(scores={move.uci(): said for move in view.legal_moves}, positions=[mover_fen(board)])
    with EnginePool(liar.path, num_processes=1, options=engine_options(LOGISTIC)) as pool:
        for config in (LOGISTIC, WDL):
            [table] = value_tables([board], pool, config, depth=1)
            assert {move for move, value in by_move(table).items() if value == 0.5} == drawing
        [table] = value_tables([board], pool, CLIPPED, depth=1)
        assert isinstance(table, ValueTable)
        assert {move for move, score in zip(table.moves, table.scores, strict=True) if score == Score(0, expected=0.5)} == drawing


@pytest.mark.parametrize("fen", ["7k/5Q2/6K1/8/8/8/8/8 b - - 0 1", "R5k1/5ppp/8/8/8/8/8/4K3 b - - 0 1"])
def test_a_board_without_a_legal_move_is_refused(fen: str, scripted: Callable[..., ScriptedEngine]) -> None:
    with pytest.raises(ValueError, match=rf"^{fen} has no legal move, so that there is nothing to value$"):
        tables(scripted().path, [chess.Board(fen)])


# Faults.


@pytest.mark.parametrize("kind", ["crash", "none", "half of the moves", "illegal best move", "a move that is none"])
def test_after_one_fault_the_tables_are_those_of_a_run_without_it(kind: str, scripted: Callable[..., ScriptedEngine]) -> None:
    fens = [mover_fen(board) for board in BOARDS]
    faulty = scripted({"kind": kind, "nth": 2}, name="Stockfish scripted", positions=fens, has_wdl=True)
    healthy = scripted(positions=fens, has_wdl=True)
    assert [numbers(table) for table in tables(faulty.path, BOARDS)] == [numbers(table) for table in tables(healthy.path, BOARDS)]


@pytest.mark.parametrize("kind", ["crash", "half of the moves"])
def test_a_board_that_always_fails_has_no_table_and_costs_no_other_board_its_own(
    kind: str, scripted: Callable[..., ScriptedEngine]
) -> None:
    fens = [mover_fen(board) for board in BOARDS]
    expected = [numbers(table) for table in tables(scripted(positions=fens).path, BOARDS)]
    made = tables(scripted({"kind": kind, "fen": FENS[2], "times": 99}, name="Stockfish scripted", positions=fens).path, BOARDS)
    assert isinstance(made[2], EngineError)
    assert FENS[2] in str(made[2])
    assert [numbers(table) for table in made[:2] + made[3:]] == expected[:2] + expected[3:]


def test_the_search_is_of_the_movers_view_and_the_scores_are_the_engines(scripted: Callable[..., ScriptedEngine]) -> None:
    black = BOARDS[1]
    engine = scripted()
    [table] = tables(engine.path, [black])
    assert isinstance(table, ValueTable)
    assert [search["fen"] for search in engine.searches()] == [mover_fen(black)] == [mover_view(black).fen()]
    said = {move: score for score, move in move_scores(mover_fen(black), sorted(m.uci() for m in mover_view(black).legal_moves), "")}
    for move, score in zip(table.moves, table.scores, strict=True):
        assert score == Score(said[mirror_move(chess.Move.from_uci(move)).uci()])


@pytest.mark.parametrize("multi_pv", [None, 5])
def test_an_engine_that_cannot_search_all_moves_at_once_makes_no_table(
    multi_pv: int | None, scripted: Callable[..., ScriptedEngine]
) -> None:
    poor = scripted(multi_pv=multi_pv)
    with pytest.raises(EngineMissingError, match="MultiPV"):
        tables(poor.path, BOARDS)
    assert not poor.searches()
