"""The dataset of positions: arrays whose columns belong together, and labels."""

import chess
import numpy as np
import pytest
from made_language import made_up_rows

from grpo.board.actions import action_move, legal_action_ids
from grpo.board.encoding import decode
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.table import Split, board_arrays, board_table

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
