"""The dataset of positions: a table that is read back as it was written, and arrays whose columns belong together."""

from typing import Any

import chess
import numpy as np
import pyarrow as pa
import pytest

from grpo.board.actions import action_move, legal_action_ids
from grpo.board.encoding import decode, position_key
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.table import Position, Split, board_arrays, board_row, board_table
from grpo.engine.answers import Score
from grpo.engine.move_values import ValueTable

FENS = {
    Split.TRAIN: [
        chess.STARTING_FEN,
        "r1bqkb1r/pppp1ppp/2n2n2/1B2p3/4P3/5N2/PPPP1PPP/RNBQ1RK1 b kq - 5 4",
        "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 b - - 0 1",
        "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 7 30",
    ],
    Split.HELDOUT: ["r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1", "4k3/8/8/8/8/8/4P3/4K3 b - - 0 1"],
}


def value_of(fen: str, uci: str, *, strong: bool) -> float:
    """Return a made-up value of a move, another one for each position, move and search."""
    return (hash_of(fen) * 31 + hash_of(uci) * 7 + strong) % 1_000 / 1_000


def hash_of(text: str) -> int:
    """Return a small number that depends on every letter."""
    return sum(index * ord(letter) for index, letter in enumerate(text, start=1))


def value_table(board: chess.Board, *, strong: bool) -> ValueTable:
    """Return a table of made-up values; the first move has a mate score."""
    moves = tuple(action_move(index, board.turn).uci() for index in legal_action_ids(board))
    return ValueTable(
        moves=moves,
        values=np.array([value_of(board.fen(), move, strong=strong) for move in moves], dtype=np.float32),
        scores=(Score(3, is_mate=True), *(Score(number) for number in range(1, len(moves)))),
    )


def row(fen: str, split: Split, *, is_played: bool = True) -> dict[str, Any]:
    """Return the row of a position whose last legal move was played, or of a listed one."""
    board = chess.Board(fen)
    table = value_table(board, strong=False)
    position = Position(
        fen=fen,
        key=position_key(board),
        phase=phase_of(board),
        split=split,
        label=table.moves[-1] if is_played else "",
        game_id=f"game {fen[:4]}",
        ply=4,
        source="engine",
        offset=2**40,
        white_rating=1_500 if board.turn else None,
        date="2018.11.??",
    )
    strong = value_table(board, strong=True) if split == Split.HELDOUT else None
    return board_row(position, table, strong, engine="Scripted 1", limit="depth 2")


@pytest.fixture
def table() -> pa.Table:
    """Return a table of two splits, mixed."""
    rows = [row(fen, split) for split, fens in FENS.items() for fen in fens]
    return board_table([rows[0], rows[4], *rows[1:4], rows[5]])


def test_the_label_of_a_position_that_nobody_played_is_the_best_move_by_value() -> None:
    for fen in FENS[Split.TRAIN]:
        listed = row(fen, Split.TRAIN, is_played=False)
        assert listed["label_from"] == "engine"
        assert listed["label"] == max(listed["moves"], key=lambda move: value_of(fen, move, strong=False))
        played = row(fen, Split.TRAIN)
        assert {name for name in played if name != "values" and played[name] != listed[name]} <= {"label", "label_from"}


@pytest.mark.parametrize(("split", "strong"), [(Split.TRAIN, False), (Split.HELDOUT, False), (Split.HELDOUT, True)])
def test_ids_values_and_legality_of_a_board_stand_in_the_same_columns(table: pa.Table, split: Split, strong: bool) -> None:
    arrays = board_arrays(table, split=split, strong=strong)
    assert len(arrays) == len(FENS[split])
    for index, fen in enumerate(FENS[split]):
        board = decode(arrays.encodings[index])
        assert board == chess.Board(" ".join([*fen.split()[:5], "1"]))
        num_legal = board.legal_moves.count()
        assert arrays.is_legal[index].tolist() == [column < num_legal for column in range(arrays.is_legal.shape[1])]
        assert arrays.action_ids[index, :num_legal].tolist() == legal_action_ids(board)
        assert not arrays.action_ids[index, num_legal:].any()
        assert not arrays.values[index, num_legal:].any()
        for column in range(num_legal):
            uci = action_move(int(arrays.action_ids[index, column]), board.turn).uci()
            assert arrays.values[index, column] == np.float32(value_of(fen, uci, strong=strong))
        assert arrays.played[index] == num_legal - 1
        assert PHASES[arrays.phases[index]] == phase_of(board)
