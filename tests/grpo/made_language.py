"""Boards with made-up value tables, as the dataset has them, for tests of language policies: no engine is asked."""

from collections.abc import Callable, Iterable
from typing import Any

import chess
import numpy as np
import pyarrow as pa
from doubles import made_up_number, some_boards

from grpo.board.actions import ACTION_UCI, legal_action_ids
from grpo.board.draws import drawing_moves
from grpo.board.encoding import position_key
from grpo.board.phases import phase_of
from grpo.dataset.table import Position, Split, board_row, board_table
from grpo.engine.answers import Score
from grpo.engine.move_values import ValueTable, value_of

ALPHABET = " +-./0123456789:ABEKMNPQRabcdefghknpqrw"  # All characters of prompts and answers.
TERMINAL_FENS = (
    "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 3 40",  # Mate in one.
    "7k/8/5KQ1/8/8/8/8/8 w - - 0 1",  # Mates and stalemates.
    "8/8/8/4k3/8/8/4pK2/8 w - - 9 80",  # King takes the last man but kings: a draw.
    "8/P6k/8/8/8/8/p6p/1N5K w - - 0 1",  # Promotions.
    "rnbqkbnr/ppp1p1pp/8/3pPp2/8/8/PPPP1PPP/RNBQKBNR w KQkq f6 0 3",  # En passant.
    "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 4 20",  # Castling, both ways.
)


def made_up_table(board: chess.Board) -> ValueTable:
    """Return all legal moves with made-up scores; what mates at once or draws has its own, and the tenth of the others are mates too."""
    moves = tuple(ACTION_UCI[board.turn][index] for index in legal_action_ids(board))
    drawing, scores = {move.uci() for move in drawing_moves(board)}, []
    for uci in moves:
        number = made_up_number(board, chess.Move.from_uci(uci))
        after = board.copy(stack=False)
        after.push_uci(uci)
        if after.is_checkmate():
            scores.append(Score(1, is_mate=True))
        elif uci in drawing:
            scores.append(Score(0))
        elif number < 0.1:
            scores.append(Score(-2 if number < 0.05 else 3, is_mate=True))
        else:
            scores.append(Score(round(2_000 * (number - 0.55))))
    values = [value_of(score) for score in scores]
    return ValueTable(moves=moves, values=np.array(values, dtype=np.float32), scores=tuple(scores))


def made_up_rows(
    boards: Iterable[chess.Board], *, split: Split = Split.TRAIN, table_of: Callable[[chess.Board], ValueTable] = made_up_table
) -> list[dict[str, Any]]:
    """Return rows of `BOARD_SCHEMA`, each board of a game of its own; held-out ones have the same values by the stronger search."""
    rows = []
    for index, board in enumerate(boards):
        position = Position(
            fen=board.fen(),
            key=position_key(board),
            phase=phase_of(board),
            split=split,
            label="",
            game_id=f"{split}-{index}",
            ply=0,
            source="made up",
            offset=index,
        )
        table = table_of(board)
        rows.append(board_row(position, table, table if split == Split.HELDOUT else None, engine="none", limit="none"))
    return rows


def language_table(count: int, *, seed: int = 0, split: Split = Split.TRAIN) -> pa.Table:
    return board_table(made_up_rows(some_boards(count, seed=seed), split=split))
