"""Rows of the tables of boards and games, made of lists of moves."""

from collections.abc import Sequence
from typing import Any

import chess
import pyarrow as pa
from made_language import made_up_rows

from grpo.board.encoding import position_key
from grpo.dataset.table import GAME_SCHEMA, Split, board_table


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
