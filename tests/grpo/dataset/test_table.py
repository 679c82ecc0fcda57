"""The dataset of positions: arrays whose columns belong together, and what is imitated, none twice and none from another split."""

import chess
import numpy as np
import pytest
from made_language import made_up_rows
from made_tables import board_at, game_row, positions_of, tables

from grpo.board.actions import action_move, legal_action_ids
from grpo.board.encoding import decode, position_key
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.labels import label_arrays
from grpo.dataset.table import LabelArrays, Split, board_arrays, board_table

FENS = {
    Split.TRAIN: [
        chess.STARTING_FEN,
        "r1bqkb1r/pppp1ppp/2n2n2/1B2p3/4P3/5N2/PPPP1PPP/RNBQ1RK1 b kq - 5 4",
        "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 b - - 0 1",
        "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 7 30",
    ],
    Split.HELDOUT: ["r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1", "4k3/8/8/8/8/8/4P3/4K3 b - - 0 1"],
}
ROWS = {split: made_up_rows(map(chess.Board, fens), split=split) for split, fens in FENS.items()}


def test_the_label_of_a_position_that_nobody_played_is_the_best_move_by_value() -> None:
    for row in ROWS[Split.TRAIN]:
        values = dict(zip(row["moves"], row["values"], strict=True))
        assert (row["label_from"], row["label"]) == ("engine", max(values, key=values.__getitem__))


@pytest.mark.parametrize(("split", "strong"), [(Split.TRAIN, False), (Split.HELDOUT, False), (Split.HELDOUT, True)])
def test_ids_values_and_legality_of_a_board_stand_in_the_same_columns(split: Split, strong: bool) -> None:
    train = [row | {"label": row["moves"][-1]} for row in ROWS[Split.TRAIN]]
    heldout = [row | {"label": row["moves"][-1], "strong_values": [1 - value for value in row["values"]]} for row in ROWS[Split.HELDOUT]]
    arrays = board_arrays(board_table([train[0], heldout[0], *train[1:], heldout[1]]), split=split, strong=strong)
    assert len(arrays) == len(FENS[split])
    for index, row in enumerate(train if split == Split.TRAIN else heldout):
        board = decode(arrays.encodings[index])
        assert board == chess.Board(" ".join([*row["fen"].split()[:5], "1"]))
        num_legal = board.legal_moves.count()
        assert arrays.is_legal[index].tolist() == [column < num_legal for column in range(arrays.is_legal.shape[1])]
        assert arrays.action_ids[index, :num_legal].tolist() == legal_action_ids(board)
        assert not arrays.action_ids[index, num_legal:].any()
        assert not arrays.values[index, num_legal:].any()
        values = dict(zip(row["moves"], row["strong_values" if strong else "values"], strict=True))
        told = [action_move(int(action), board.turn).uci() for action in arrays.action_ids[index, :num_legal]]
        assert arrays.values[index, :num_legal].tolist() == [np.float32(values[move]) for move in told]
        assert arrays.played[index] == num_legal - 1
        assert PHASES[arrays.phases[index]] == phase_of(board)


# What is imitated.

MOVES = "e2e4 e7e5 g1f3 b8c6 f1b5 a7a6 b5a4 g8f6 e1g1 f8e7"
OTHER_MOVES = "e2e4 e7e5 g1f3 b8c6 f1c4 f8c5"


def imitated(arrays: LabelArrays) -> dict[str, str]:
    """Return the key of each position and its move, as the mover sees it."""
    assert arrays.is_legal[np.arange(len(arrays)), arrays.played].all()
    found = {}
    for row in range(len(arrays)):
        board = decode(arrays.encodings[row])
        legal = {action_move(index, board.turn).uci() for index in arrays.action_ids[row][arrays.is_legal[row]]}
        assert legal == {move.uci() for move in board.legal_moves}
        found[position_key(board)] = action_move(int(arrays.action_ids[row, arrays.played[row]]), board.turn).uci()
    assert len(found) == len(arrays), "no position is there twice"
    return found


def played_in(moves: str) -> dict[str, str]:
    return {position_key(board): move for board, move in zip(positions_of(moves), moves.split(), strict=True)}


def test_all_moves_played_in_the_training_games_are_imitated() -> None:
    arrays = label_arrays(*tables([board_at(MOVES, 4)], [game_row(MOVES)]), max_positions=100)
    assert imitated(arrays) == played_in(MOVES)


def test_no_position_is_there_twice_and_none_is_a_board_of_another_split() -> None:
    boards = [board_at(MOVES, 2), board_at(OTHER_MOVES, 5, game_id="h", split=Split.HELDOUT)]
    heldout = board_at(MOVES, 8, game_id="h", split=Split.HELDOUT)
    games = [game_row(MOVES), game_row(OTHER_MOVES, game_id="other"), game_row(OTHER_MOVES, game_id="h", split=Split.HELDOUT)]
    found = imitated(label_arrays(*tables([*boards, heldout], games), max_positions=100))
    expected = played_in(OTHER_MOVES) | played_in(MOVES)
    assert found == {key: move for key, move in expected.items() if key not in (heldout["key"], boards[1]["key"])}, "of two, the first's"


def test_a_forced_move_is_not_imitated() -> None:
    moves = "e2e4 f7f6 d1h5 g7g6 h5h4"  # After the check there is only g7g6.
    arrays = label_arrays(*tables([board_at(moves, 0)], [game_row(moves)]), max_positions=100)
    assert [*imitated(arrays).values()].count("g7g6") == 0
    assert len(arrays) == 4


def test_the_boards_come_first_and_the_others_do_not_depend_on_the_games_order() -> None:
    boards = [board_at(MOVES, 9), board_at(MOVES, 7)]
    games = [game_row(MOVES), game_row(OTHER_MOVES, game_id="other", label_plies=[4, 5])]
    few = [imitated(label_arrays(*tables(boards, order), max_positions=6)) for order in (games, games[::-1])]
    assert few[0].keys() == few[1].keys()
    assert len(few[0]) == 6
    assert few[0].keys() > {row["key"] for row in boards}
    assert imitated(label_arrays(*tables(boards, games), max_positions=1)).keys() == {row["key"] for row in boards}
