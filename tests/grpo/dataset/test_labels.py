"""What is imitated: the training boards, and more moves of their games, none twice and none from another split."""

from collections.abc import Sequence
from typing import Any

import chess
import numpy as np
import pyarrow as pa
from made_language import made_up_rows

from grpo.board.actions import action_move
from grpo.board.encoding import decode, position_key
from grpo.dataset.labels import label_arrays
from grpo.dataset.table import GAME_SCHEMA, LabelArrays, Split, board_table

MOVES = "e2e4 e7e5 g1f3 b8c6 f1b5 a7a6 b5a4 g8f6 e1g1 f8e7"
OTHER_MOVES = "e2e4 e7e5 g1f3 b8c6 f1c4 f8c5"


def positions_of(moves: str) -> list[chess.Board]:
    board, found = chess.Board(), []
    for move in moves.split():
        found.append(board.copy(stack=False))
        board.push_uci(move)
    return found


def game_row(moves: str, *, game_id: str = "g", split: Split = Split.TRAIN, label_plies: Sequence[int] | None = None) -> dict[str, Any]:
    return {
        "game_id": game_id,
        "source": "engine",
        "offset": 0,
        "split": split.value,
        "start_fen": chess.STARTING_FEN,
        "num_plies": len(moves.split()),
        "result": "*",
        "moves": moves.split(),
        "keys": [position_key(board) for board in positions_of(moves)],
        "label_plies": list(range(len(moves.split()))) if label_plies is None else label_plies,
    }


def board_at(moves: str, ply: int, *, game_id: str = "g", split: Split = Split.TRAIN) -> dict[str, Any]:
    [row] = made_up_rows([positions_of(moves)[ply]], split=split)
    return row | {"label": moves.split()[ply], "game_id": game_id, "ply": ply}


def tables(boards: Sequence[dict[str, Any]], games: Sequence[dict[str, Any]]) -> tuple[pa.Table, pa.Table]:
    return board_table(boards), pa.Table.from_pylist(list(games), schema=GAME_SCHEMA)


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
    assert found.keys() == expected.keys() - {heldout["key"], boards[1]["key"]}


def test_the_boards_come_first_and_the_others_do_not_depend_on_the_games_order() -> None:
    boards = [board_at(MOVES, 9), board_at(MOVES, 7)]
    games = [game_row(MOVES), game_row(OTHER_MOVES, game_id="other", label_plies=[4, 5])]
    few = [imitated(label_arrays(*tables(boards, order), max_positions=6)) for order in (games, games[::-1])]
    assert few[0].keys() == few[1].keys()
    assert len(few[0]) == 6
    assert few[0].keys() > {row["key"] for row in boards}
    assert imitated(label_arrays(*tables(boards, games), max_positions=1)).keys() == {row["key"] for row in boards}
