"""Afterstates by dense tables instead of bitboards: the same numbers in few operations, some fifty times as slow.

An exported model needs this form: its graph has a hundred nodes where bitboards take two thousand, and no sizes that depend on the data.
Tests compare the two forms.

Legend: B boards, N moves of them; a, b, q squares, k the king's. All tensors are float32 with small whole numbers, exact in any order.
"""

from collections.abc import Callable, Sequence
from typing import Final

import chess
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo.board.afterstates import ACTION_SQUARES, RIGHT_ENDS
from grpo.board.encoding import CASTLING, HALFMOVE_CLOCK, MAX_HALFMOVE_CLOCK

_KING: Final = 6
_THEIRS: Final = 6
"""Added to the code of a piece of the side to reply."""


def _bits(masks: Sequence[int]) -> NDArray[np.float32]:
    """Return sets of squares as rows of 64 zeros and ones."""
    return np.unpackbits(np.array(masks, dtype="<u8").view(np.uint8), bitorder="little").reshape(-1, 64).astype(np.float32)


def _attacked_from(code: int) -> list[int]:
    """Return what a piece of this code attacks on an empty board, from each square."""
    if not code:
        return [0] * 64
    board = chess.BaseBoard.empty()
    masks = []
    for square in chess.SQUARES:
        board.set_piece_at(square, chess.Piece((code - 1) % 6 + 1, code <= _THEIRS))
        masks.append(board.attacks_mask(square))
        board.remove_piece_at(square)
    return masks


def _of_pairs(squares_of: Callable[[int, int], int]) -> NDArray[np.float32]:
    """Return [64, 64, 64]: for each pair of squares the set that a function gives."""
    return _bits([squares_of(one, other) for one in chess.SQUARES for other in chess.SQUARES]).reshape(64, 64, 64)


# In numpy, and when this module is imported: torch would record their making in the exported graph.
_between = _of_pairs(chess.between)
_LINE: Final = _of_pairs(chess.ray)
_ATTACKS: Final = torch.from_numpy(np.stack([_bits(_attacked_from(code)) for code in range(13)]))
"""[13, 64, 64], whether a piece of this code on a attacks b on an empty board."""
_BETWEEN: Final = torch.from_numpy(_between)
"""[64, 64, 64] by k, a, q: whether q lies between."""
_RAY: Final = torch.from_numpy(_LINE * (1 - _between.transpose(2, 0, 1)) * (1 - np.eye(64, dtype=np.float32)[:, None]))
"""[64, 64, 64] by k, a, b: whether b lies on the ray from k through a."""
_PAWN_STEPS: Final = torch.from_numpy(
    _bits([(1 << square) >> 8 | ((1 << square) >> 16 if square // 8 == 6 else 0) for square in chess.SQUARES])
)
"""[64, 64], whether a pawn of the replying side moves from a to b without a capture."""
_SQUARES: Final = torch.arange(64)
_LIGHT: Final = torch.from_numpy(_bits([chess.BB_LIGHT_SQUARES])[0])
_ENDS_RIGHT: Final = torch.from_numpy(_bits(RIGHT_ENDS))
"""[4, 64], whether a move from or to the square ends a castling right."""


def dense_afterstates(encodings_BE: Tensor, rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes of all squares after each move, [3, N, 64] int64, and its features, [N, 7], as in `grpo.board.afterstates`.

    Args:
        encodings_BE: bytes of `encoding.encode`, [B, 71].
        rows: [N], the board of each move.
        ids: [N], its action id.
    """
    before = encodings_BE[rows]
    start, end, promotion = ACTION_SQUARES[ids].unbind(1)
    touched = (start[:, None] == _SQUARES) | (end[:, None] == _SQUARES)
    before_codes = before[:, :64].long()
    mover, captured = (before_codes.gather(1, square[:, None])[:, 0] for square in (start, end))
    codes = _moved(before_codes, start, end, torch.where(promotion > 0, promotion, mover))
    is_pawn = mover == chess.PAWN
    jumped = torch.where(is_pawn & (end - start == 16), end - 8, -1)
    kinds = torch.where(codes > _THEIRS, codes - _THEIRS, codes).float()
    is_ours, is_theirs = ((codes > 0) & (codes <= _THEIRS)).float(), (codes > _THEIRS).float()
    king = (codes == _KING + _THEIRS).float()
    aims = _ATTACKS.view(13 * 64, 64)[codes * 64 + _SQUARES]  # [N, a, b]
    by_us = aims * is_ours[:, :, None] * _is_clear(is_ours + is_theirs - king)
    by_them = aims * is_theirs[:, :, None] * _is_clear(is_ours + is_theirs)
    ours, theirs = (_control(reached, kinds) for reached in (by_us, by_them))
    is_check = ((ours > 0) & (king > 0)).any(1)
    has_reply = _has_reply(codes, aims, by_them, ours, jumped)
    clock = torch.where(is_pawn | (captured > 0), 0, (before[:, HALFMOVE_CLOCK].long() + 1).clamp(max=MAX_HALFMOVE_CLOCK))
    is_mate = is_check & ~has_reply
    is_draw = ~is_mate & (~has_reply | _is_dead(kinds) | (clock >= MAX_HALFMOVE_CLOCK))
    rights = before[:, CASTLING].float() * (touched.float() @ _ENDS_RIGHT.T == 0)
    features = torch.cat([rights, is_mate.float()[:, None], is_draw.float()[:, None], clock.float()[:, None] / MAX_HALFMOVE_CLOCK], 1)
    return torch.stack([codes, ours, theirs]), features


def _moved(codes: Tensor, start: Tensor, end: Tensor, placed: Tensor) -> Tensor:
    """Return the piece codes [N, 64] after moves that put the piece `placed` [N] onto their end."""

    def at(square: Tensor, where: Tensor) -> Tensor:
        return (square[:, None] == _SQUARES) & where[:, None]

    mover, captured = (codes.gather(1, square[:, None])[:, 0] for square in (start, end))
    always = mover >= 0
    is_en_passant = (mover == chess.PAWN) & (captured == 0) & ((end - start) % 8 != 0)
    castles = [(mover == chess.KING) & (end - start == step) for step in (2, -2)]
    gone = at(start, always) | at(end, always) | at(end - 8, is_en_passant) | at(end + 1, castles[0]) | at(end - 2, castles[1])
    rook = at(end - 1, castles[0]) | at(end + 1, castles[1])
    return torch.where(gone, 0, codes) + at(end, always).long() * placed[:, None] + chess.ROOK * rook.long()


def _is_clear(occupied: Tensor) -> Tensor:
    """Return whether nothing stands between two squares, [N, a, b], for occupied squares [N, q]."""
    return (occupied @ _BETWEEN.view(64 * 64, 64).T == 0).float().view(-1, 64, 64)


def _has_reply(codes: Tensor, aims: Tensor, by_them: Tensor, ours: Tensor, jumped: Tensor) -> Tensor:
    """Return whether the replying side has a legal move, [N].

    Args:
        codes: [N, q] piece codes.
        aims: [N, a, b] whether the piece on a attacks b on an empty board.
        by_them: [N, a, b] whether their piece on a attacks b.
        ours: [N, b] our control, through their king.
        jumped: [N] the square that a pawn has just jumped over, or -1.
    """
    is_ours, is_theirs = ((codes > 0) & (codes <= _THEIRS)).float(), (codes > _THEIRS).float()
    occupied, king = is_ours + is_theirs, (codes == _KING + _THEIRS).float()
    king_at, on_king = king.argmax(1), king[:, :, None]
    between = _BETWEEN[king_at]  # [N, a, q]
    is_aimed = (aims @ on_king)[:, :, 0] * is_ours
    num_between = (between @ occupied[:, :, None])[:, :, 0]
    checkers = is_aimed * (num_between == 0)
    num_checkers = checkers.sum(1)
    answers = torch.where((num_checkers > 0)[:, None], checkers + (checkers[:, None] @ between)[:, 0], 1.0)  # Takes or blocks.
    pinned = ((is_aimed * (num_between == 1))[:, None] @ between)[:, 0] * is_theirs
    may_go = torch.where((pinned > 0)[:, :, None], _RAY[king_at], 1.0) * answers[:, None] * (1 - on_king)
    is_pawn = (codes == chess.PAWN + _THEIRS).float()[:, :, None]
    goals = torch.where(is_pawn > 0, is_ours[:, None], 1 - is_theirs[:, None])
    replies = by_them * goals + is_pawn * _PAWN_STEPS * _is_clear(occupied) * (1 - occupied)[:, None]
    has_reply = ((replies * may_go).sum((1, 2)) > 0) & (num_checkers < 2)
    has_reply = has_reply | ((_ATTACKS[_KING][king_at] * (1 - is_theirs) * (ours == 0)).sum(1) > 0)
    for side in (7, 9):  # En passant, played, and looked at.
        taker = is_pawn[:, :, 0] * ((jumped + side)[:, None] == _SQUARES) * _ATTACKS[chess.PAWN + _THEIRS].T[jumped]
        taken = ((jumped + 8)[:, None] == _SQUARES).float()
        later = occupied - taker - taken + (jumped[:, None] == _SQUARES)
        attackers = is_aimed * (1 - taken) * ((between @ later[:, :, None])[:, :, 0] == 0)
        has_reply = has_reply | ((jumped >= 0) & (taker.sum(1) > 0) & (attackers.sum(1) == 0))
    return has_reply


def _control(reached: Tensor, kinds: Tensor) -> Tensor:
    """Return the control of each square, [N, 64]: the lowest attacker, plus 6 with several; `reached` is [N, a, b]."""
    num = reached.sum(1)
    lowest = 7 - (reached * (7 - kinds)[:, :, None]).amax(1)
    return torch.where(num > 0, lowest + 6 * (num > 1), 0).long()


def _is_dead(kinds: Tensor) -> Tensor:
    """Return whether neither side can mate by any moves, [N]."""
    num_knights, bishops = (kinds == chess.KNIGHT).sum(1), (kinds == chess.BISHOP).float()
    num_light, num_bishops = (bishops * _LIGHT).sum(1), bishops.sum(1)
    has_enough = ((kinds == chess.PAWN) | (kinds == chess.ROOK) | (kinds == chess.QUEEN)).any(1)
    one_colour = (num_light == 0) | (num_light == num_bishops)
    return ~has_enough & (((num_knights == 0) & one_colour) | ((num_knights == 1) & (num_bishops == 0)))
