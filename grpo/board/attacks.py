"""Attack maps: how many pieces of each type attack each square, an input feature that a small network would need many layers to compute.

Legend: B boards; codes are those of `grpo.board.encoding` (0 none, 1-6 the mover's pawn..king, 7-12 the opponent's), with the mover's
pawns moving up.
"""

from typing import Final

import torch
from torch import Tensor

from grpo.board.encoding import NUM_PIECE_CODES

NUM_ATTACK_COUNTS: Final = NUM_PIECE_CODES - 1
_STRAIGHT: Final = ((0, 1), (0, -1), (1, 0), (-1, 0))
_DIAGONAL: Final = ((1, 1), (1, -1), (-1, 1), (-1, -1))
_KNIGHT: Final = ((1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1), (-2, 1), (-1, 2))
_PAWN, _KNIGHTS, _BISHOP, _ROOK, _QUEEN, _KING = range(6)
_EDGE: Final = 7  # The longest ray.


def attack_counts(codes_B64: Tensor) -> Tensor:
    """Return how many pieces of each type and side attack each square, shape [B, 64, 12], in the order of the piece codes.

    A piece attacks every square on which it could capture; pins are ignored, and squares of its own pieces count as attacked (defended),
    as in `chess.Board.attackers`.

    Args:
        codes_B64: uint8, the first 64 bytes of `encoding.encode`.
    """
    # The board axis is last, so that sums run over contiguous memory.
    num_boards = codes_B64.shape[0]  # Not `len`, which an ONNX export would freeze to a constant.
    board = codes_B64.new_zeros((8 + 2 * _EDGE, 8 + 2 * _EDGE, num_boards))
    board[_EDGE:-_EDGE, _EDGE:-_EDGE] = codes_B64.T.reshape(8, 8, -1)
    counts = codes_B64.new_zeros((NUM_ATTACK_COUNTS, 8, 8, num_boards))

    def at(rank: int, file: int) -> Tensor:
        """Return for each square the piece code of the square at this offset from it."""
        return board[_EDGE + rank : _EDGE + rank + 8, _EDGE + file : _EDGE + file + 8]

    def add(kind: int, found: Tensor, sides: tuple[int, ...] = (0, 6)) -> None:
        for side in sides:
            counts[kind + side] += found == kind + side + 1

    for directions, slider in ((_STRAIGHT, _ROOK), (_DIAGONAL, _BISHOP)):
        for rank, file in directions:
            nearest = at(rank, file)
            add(_KING, nearest)
            for distance in range(2, _EDGE + 1):
                nearest = torch.where(nearest > 0, nearest, at(rank * distance, file * distance))
            add(slider, nearest)
            add(_QUEEN, nearest)
    for rank, file in _KNIGHT:
        add(_KNIGHTS, at(rank, file))
    for file in (1, -1):
        add(_PAWN, at(-1, file), (0,))
        add(_PAWN, at(1, file), (6,))
    return counts.view(NUM_ATTACK_COUNTS, 64, -1).permute(2, 1, 0)
