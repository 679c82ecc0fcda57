"""States to learn from: every board keeps its own moves, values and phase; without a choice there is nothing to learn."""

import chess
import numpy as np
import pytest
import torch
from doubles import MadeUpValues, WrittenPolicy, fake_arrays, made_up_number, some_boards

from grpo.board.actions import action_move
from grpo.board.encoding import decode, position_key
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.table import BoardArrays
from grpo.engine.answers import EngineError
from grpo.engine.move_values import ValueTable
from grpo.engine.pool import EnginePool
from grpo.learning import states as states_module
from grpo.learning.states import DatasetStates, LiveValues, States, joined, valued_states
from grpo.settings.tree import ValuesConfig

BOARDS = some_boards(50)
ARRAYS = fake_arrays(BOARDS)
POLICY = WrittenPolicy(lambda board, move: 0.0)
# King h1, rook on the second rank, and its mirror image by files: g1 (b1) is the only move.
FORCED = [chess.Board("7k/8/8/8/8/8/r7/7K w - - 0 1"), chess.Board("k7/8/8/8/8/8/7r/K7 w - - 0 1")]


def names(states: States) -> list[str]:
    """Return the key of each board."""
    return [position_key(decode(row.numpy())) for row in states.positions.encodings]


def check(states: States) -> None:
    """Check that moves, values, phases and boards of states belong together."""
    assert states.values.shape == states.positions.action_ids.shape == states.positions.is_legal.shape
    for row in range(len(states)):
        board = decode(states.positions.encodings[row].numpy())
        count = board.legal_moves.count()
        moves = [action_move(index, board.turn) for index in states.positions.action_ids[row, :count].tolist()]
        assert set(moves) == set(board.legal_moves)
        assert states.positions.is_legal[row].sum() == count
        assert states.values[row, :count].tolist() == pytest.approx([made_up_number(board, move) for move in moves], abs=1e-7)
        assert not states.values[row, count:].any()
        assert PHASES[int(states.phases[row])] == phase_of(board)


def source_of(arrays: BoardArrays = ARRAYS, *, size: int = 16, seed: int = 0) -> DatasetStates:
    """Return the dataset's states."""
    return DatasetStates(arrays, states_per_step=size, seed=seed, mirrors_boards=False)


def test_an_epoch_shows_no_board_twice_and_leaves_only_the_remainder_out() -> None:
    source = source_of()
    for epoch in range(3):
        seen = [name for place in range(3) for name in names(source.states(3 * epoch + place, POLICY))]
        assert len(set(seen)) == len(seen) == 48


def test_each_epoch_has_an_order_of_its_own_and_each_seed_too() -> None:
    orders = [names(source_of(size=50, seed=seed).states(step, POLICY)) for seed in (0, 1) for step in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert len({frozenset(order) for order in orders}) == 1


def test_the_states_of_a_step_do_not_depend_on_what_was_asked_before() -> None:
    straight = source_of()
    expected = [names(straight.states(step, POLICY)) for step in range(8)]
    for step in (7, 2, 3, 2, 0, 6):
        assert names(straight.states(step, POLICY)) == expected[step]
        assert names(source_of().states(step, POLICY)) == expected[step]


def test_states_keep_their_own_moves_values_and_phases() -> None:
    source = source_of()
    for step in range(4):
        check(source.states(step, POLICY))
    some = source.states(0, POLICY).select_rows(torch.tensor([9, 2, 2]))
    check(some)
    assert names(some)[1] == names(some)[2] != names(some)[0]
    assert some.values.shape[1] == int(some.positions.is_legal.sum(1).max()), "no wider than needed"


def test_boards_with_one_legal_move_are_left_out_and_counted() -> None:
    assert [board.legal_moves.count() for board in FORCED] == [1, 1]
    mixed = source_of(fake_arrays([FORCED[0], *BOARDS[:10], FORCED[1], *BOARDS[10:20]]), size=20)
    assert mixed.num_forced == 2
    assert source_of().num_forced == 0
    for epoch in range(3):
        states = mixed.states(epoch, POLICY)
        check(states)
        assert set(names(states)) == {position_key(board) for board in BOARDS[:20]}


def test_too_few_boards_with_a_choice_are_refused_with_what_to_do() -> None:
    arrays = fake_arrays([*BOARDS[:3], *FORCED])
    assert source_of(arrays, size=3).size == 3
    with pytest.raises(ValueError, match=r"3 boards with a choice of moves are fewer than a step takes \(4\): lower grpo.states_per_step"):
        source_of(arrays, size=4)
    with pytest.raises(ValueError, match="0 boards"):
        source_of(fake_arrays(FORCED), size=1)


def test_joined_states_are_as_wide_as_the_widest_and_keep_their_order() -> None:
    parts = [source_of(size=5).states(step, POLICY) for step in range(3)]
    whole = joined(parts)
    check(whole)
    assert names(whole) == [name for part in parts for name in names(part)]
    assert whole.values.shape[1] == max(part.values.shape[1] for part in parts)


def test_valued_states_are_in_the_order_of_the_boards() -> None:
    states, kept, num_dropped = valued_states(BOARDS[:7], MadeUpValues())
    assert states is not None
    check(states)
    assert (kept, num_dropped) == (list(range(7)), 0)
    assert names(states) == [position_key(board) for board in BOARDS[:7]]


def test_boards_that_the_engine_failed_on_are_dropped_and_counted_and_others_keep_their_own_values() -> None:
    failed = {BOARDS[index].epd() for index in (0, 3, 4)}
    states, kept, num_dropped = valued_states(BOARDS[:7], MadeUpValues(fails_on=lambda board: board.epd() in failed))
    assert states is not None
    check(states)
    assert (kept, num_dropped) == ([1, 2, 5, 6], 3)
    assert names(states) == [position_key(BOARDS[index]) for index in kept]


def test_a_failed_engine_is_no_value_rather_than_a_value_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ValueTable(moves=("e2e4",), values=np.array([0.5], dtype=np.float32), scores=())
    monkeypatch.setattr(states_module, "value_tables", lambda *_, **__: [table, EngineError("died")])
    pool: EnginePool = object()  # type: ignore[assignment]
    assert LiveValues(pool, ValuesConfig()).tables([chess.Board(), chess.Board()]) == [table, None]
