"""States to learn from: every board keeps its own moves, values and phase; without a choice there is nothing to learn."""

import chess
import pytest
from doubles import MadeUpValues, check_states, fake_arrays, name_of, names_of, some_boards

from grpo.dataset.table import BoardArrays
from grpo.train.states import DatasetStates, valued_states

BOARDS = some_boards(50)
ARRAYS = fake_arrays(BOARDS)
# King h1, rook on the second rank: g1 is the only move.
FORCED = chess.Board("7k/8/8/8/8/8/r7/7K w - - 0 1")


def source_of(arrays: BoardArrays = ARRAYS, *, size: int = 16, seed: int = 0) -> DatasetStates:
    """Return the dataset's states."""
    return DatasetStates(arrays, states_per_step=size, seed=seed)


def test_an_epoch_shows_no_board_twice_in_an_order_of_its_own_whatever_was_asked_before() -> None:
    source = source_of()
    shown = [names_of(source.states(step)) for step in range(9)]
    for epoch in range(3):
        assert len({name for step in shown[3 * epoch : 3 * epoch + 3] for name in step}) == 48, "only the remainder is left out"
    assert shown[0] != shown[3] != names_of(source_of(seed=1).states(3))
    for step in (7, 2, 3, 2, 0):
        assert names_of(source.states(step)) == names_of(source_of().states(step)) == shown[step]


def test_boards_with_one_legal_move_are_left_out_and_too_few_are_refused() -> None:
    arrays = fake_arrays([FORCED, *BOARDS[:10]])
    states = source_of(arrays, size=10).states(0)
    check_states(states)
    assert set(names_of(states)) == {name_of(board) for board in BOARDS[:10]}
    with pytest.raises(ValueError, match=r"10 boards with a choice of moves are fewer than a step takes \(11\)"):
        source_of(arrays, size=11)


def test_boards_that_the_engine_failed_on_are_dropped_and_counted_and_others_keep_their_own_values() -> None:
    failed = {BOARDS[index].epd() for index in (0, 3, 4)}
    states, kept = valued_states(BOARDS[:7], MadeUpValues(fails_on=lambda board: board.epd() in failed))
    check_states(states)
    assert kept == [1, 2, 5, 6]
    assert names_of(states) == [name_of(BOARDS[index]) for index in kept]
