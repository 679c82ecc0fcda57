"""A dataset's folder with made-up values, as the steps behind it read it: no engine is asked."""

from collections.abc import Sequence
from pathlib import Path

import chess
import numpy as np
import pyarrow.parquet as pq

from grpo.board.encoding import position_key
from grpo.board.phases import phase_of
from grpo.dataset.table import GAME_SCHEMA, Position, Split, board_row, board_table
from grpo.engine.answers import Score
from grpo.engine.move_values import ValueTable
from steps.names import BOARDS, GAMES


def write_boards(folder: Path, boards: Sequence[chess.Board], *, num_train: int = 0) -> None:
    """Write boards, the first of them to train on and all others held out."""
    rng, rows = np.random.default_rng(0), []
    for number, board in enumerate(boards):
        moves = tuple(sorted(move.uci() for move in board.legal_moves))
        values = rng.random(len(moves)).astype(np.float32)
        table = ValueTable(moves=moves, values=values, scores=tuple(Score(0) for _ in moves))
        split = Split.TRAIN if number < num_train else Split.HELDOUT
        position = Position(
            fen=board.fen(),
            key=position_key(board),
            phase=phase_of(board),
            split=split,
            label=moves[0],
            game_id=f"{number}",
            ply=0,
            source="engine",
            offset=0,
        )
        strong = table if split == Split.HELDOUT else None
        rows.append(board_row(position, table, strong, engine="Stockfish", limit="depth 2"))
    pq.write_table(board_table(rows), folder / BOARDS)
    pq.write_table(GAME_SCHEMA.empty_table(), folder / GAMES)
