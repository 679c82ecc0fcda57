"""States to learn from: every board keeps its own moves, values and phase; without a choice there is nothing to learn."""

import chess
import pytest
import torch
from doubles import MadeUpValues, fake_arrays, made_up_number, some_boards

from grpo.board.actions import action_move
from grpo.board.encoding import decode, position_key
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.table import BoardArrays
from grpo.policy.distribution import joined
from grpo.train.batch import States
from grpo.train.states import DatasetStates, valued_states

BOARDS = some_boards(50)
ARRAYS = fake_arrays(BOARDS)
# King h1, rook on the second rank: g1 is the only move.
FORCED = chess.Board("7k/8/8/8/8/8/r7/7K w - - 0 1")


def name_of(board: chess.Board) -> str:
    """Return a name that a position and its mirror image share."""
    return min(position_key(board), position_key(board.transform(chess.flip_horizontal)))


def names(states: States) -> list[str]:
    """Return the name of each board."""
    return [name_of(decode(row.numpy())) for row in states.positions.encodings]


def check(states: States) -> None:
    """Check that moves, values, phases and boards of states belong together."""
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
    return DatasetStates(arrays, states_per_step=size, seed=seed)


def test_an_epoch_shows_no_board_twice_in_an_order_of_its_own_whatever_was_asked_before() -> None:
    source = source_of()
    shown = [names(source.states(step)) for step in range(9)]
    for epoch in range(3):
        assert len({name for step in shown[3 * epoch : 3 * epoch + 3] for name in step}) == 48, "only the remainder is left out"
    assert shown[0] != shown[3] != names(source_of(seed=1).states(3))
    for step in (7, 2, 3, 2, 0):
        assert names(source.states(step)) == names(source_of().states(step)) == shown[step]


def test_states_keep_their_own_moves_values_and_phases_selected_or_joined() -> None:
    parts = [source_of(size=5).states(step) for step in range(3)]
    whole = joined(parts)
    check(whole)
    assert names(whole) == [name for part in parts for name in names(part)]
    some = whole.select_rows(torch.tensor([9, 2, 2]))
    check(some)
    assert names(some) == [names(whole)[row] for row in (9, 2, 2)]


def test_boards_with_one_legal_move_are_left_out_and_too_few_are_refused() -> None:
    arrays = fake_arrays([FORCED, *BOARDS[:10]])
    states = source_of(arrays, size=10).states(0)
    check(states)
    assert set(names(states)) == {name_of(board) for board in BOARDS[:10]}
    with pytest.raises(ValueError, match=r"10 boards with a choice of moves are fewer than a step takes \(11\)"):
        source_of(arrays, size=11)


def test_boards_that_the_engine_failed_on_are_dropped_and_counted_and_others_keep_their_own_values() -> None:
    failed = {BOARDS[index].epd() for index in (0, 3, 4)}
    states, kept = valued_states(BOARDS[:7], MadeUpValues(fails_on=lambda board: board.epd() in failed))
    assert states is not None
    check(states)
    assert kept == [1, 2, 5, 6]
    assert names(states) == [name_of(BOARDS[index]) for index in kept]
