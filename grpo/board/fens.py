"""FENs from users."""

from typing import Any

import chess


def boards_of_fens(fens: Any) -> list[chess.Board]:
    """Raises ValueError, which names the row (from 0), if an entry is not the FEN of a legal position."""
    boards = []
    for row, fen in enumerate(fens):
        if not isinstance(fen, str):
            kind = type(fen).__name__
            raise ValueError(f"row {row} is of type {kind} and not a FEN: give a list of FENs, or a table with one FEN in each row")
        try:
            board = chess.Board(fen)
        except ValueError as error:
            raise ValueError(f"row {row}: {fen!r} is not a FEN: {error}") from None
        if not board.is_valid():
            raise ValueError(f"row {row}: {fen!r} is not a legal position: {board.status().name}")
        boards.append(board)
    return boards
