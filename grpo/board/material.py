"""Material of a position."""

from typing import Final

import chess

_PAWNS: Final = {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9}


def material_lead(board: chess.Board, color: chess.Color) -> int:
    """Return a color's material minus its opponent's, in pawns.

    >>> material_lead(chess.Board("k7/8/8/8/8/8/8/KQ5r w - - 0 1"), chess.BLACK)
    -4
    """
    return sum(
        pawns * (board.pieces_mask(piece, color).bit_count() - board.pieces_mask(piece, not color).bit_count())
        for piece, pawns in _PAWNS.items()
    )
