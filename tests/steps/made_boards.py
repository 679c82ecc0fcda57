"""A dataset's folder with made-up values, as the steps behind it read it: no engine is asked."""

from collections.abc import Sequence
from pathlib import Path

import chess
import pyarrow.parquet as pq
from made_language import made_up_rows

from grpo.dataset.table import GAME_SCHEMA, Split, board_table
from steps.names import BOARDS, GAMES


def write_boards(folder: Path, boards: Sequence[chess.Board], *, num_train: int = 0) -> None:
    rows = [*made_up_rows(boards[:num_train], split=Split.TRAIN), *made_up_rows(boards[num_train:], split=Split.HELDOUT)]
    pq.write_table(board_table(rows), folder / BOARDS)
    pq.write_table(GAME_SCHEMA.empty_table(), folder / GAMES)
