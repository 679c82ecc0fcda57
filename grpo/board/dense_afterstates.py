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

from grpo.board.actions import ACTIONS
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
_MOVES: Final = torch.tensor([[move.from_square, move.to_square, move.promotion or 0] for move in ACTIONS])
"""[1968, 3], start, end, code after a promotion (else 0)."""
_LIGHT: Final = torch.from_numpy(_bits([chess.BB_LIGHT_SQUARES])[0])
_ENDS_RIGHT: Final = torch.from_numpy(
    _bits([chess.BB_E1 | chess.BB_H1, chess.BB_E1 | chess.BB_A1, chess.BB_E8 | chess.BB_H8, chess.BB_E8 | chess.BB_A8])
)
"""[4, 64], whether a move from or to the square ends a castling right."""


def dense_afterstates(encodings_BE: Tensor, rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes of all squares after each move, [3, N, 64] int64, and its features, [N, 7], as `grpo.board.afterstates` defines them.

    Args:
        encodings_BE: bytes of `encoding.encode`, [B, 71].
        rows: [N], the board of each move.
        ids: [N], its action id.
    """
    before = encodings_BE[rows]
    start, end, promotion = _MOVES[ids].unbind(1)
    squares = torch.arange(64)
    at_start, at_end = (squares == start[:, None]).long(), (squares == end[:, None]).long()
    codes = before[:, :64].long()
    mover, captured = (codes * at_start).sum(1), (codes * at_end).sum(1)
    is_pawn, step = mover == chess.PAWN, end - start
    is_en_passant = is_pawn & (captured == 0) & (step % 8 != 0)
    castling = torch.where(mover == chess.KING, step, 0)
    gone = at_start + at_end + ((squares == (end - 8)[:, None]) & is_en_passant[:, None]).long()
    gone = gone + ((squares == 7) & (castling == 2)[:, None]).long() + ((squares == 0) & (castling == -2)[:, None]).long()
    rook = ((squares == 5) & (castling == 2)[:, None]) | ((squares == 3) & (castling == -2)[:, None])
    codes = torch.where(gone > 0, 0, codes)
    codes = codes + at_end * torch.where(promotion > 0, promotion, mover)[:, None] + chess.ROOK * rook.long()
    jumped = torch.where(is_pawn & (step == 16), end - 8, -1)

    is_ours, is_theirs = ((codes > 0) & (codes <= _THEIRS)).float(), (codes > _THEIRS).float()
    king = (codes == _KING + _THEIRS).float()
    occupied = is_ours + is_theirs
    kinds = torch.where(codes > _THEIRS, codes - _THEIRS, codes).float()
    table = _ATTACKS.view(13 * 64, 64)[codes * 64 + squares]  # [N, a, b]
    blocked = _BETWEEN.view(64 * 64, 64).T
    is_clear_to_us = ((occupied - king) @ blocked == 0).float().view(-1, 64, 64)
    is_clear_to_them = (occupied @ blocked == 0).float().view(-1, 64, 64)
    by_us, by_them = table * is_ours[:, :, None] * is_clear_to_us, table * is_theirs[:, :, None] * is_clear_to_them
    ours, theirs = (_control(by, kinds) for by in (by_us, by_them))

    king_at = king.argmax(1)
    between, ray = _BETWEEN[king_at], _RAY[king_at]  # [N, a, q], [N, a, b]
    on_king = king[:, :, None]
    is_aligned = (table @ on_king)[:, :, 0] * is_ours  # [N, a] whether it would attack the king on an empty board.
    num_between = (between @ occupied[:, :, None])[:, :, 0]
    checkers = is_aligned * (num_between == 0)
    num_checkers = checkers.sum(1)
    block = torch.minimum(checkers + (checkers[:, None] @ between)[:, 0], torch.ones(()))
    pinned = ((is_aligned * (num_between == 1))[:, None] @ between)[:, 0] * is_theirs
    may_go = torch.where((pinned > 0)[:, :, None], ray, 1.0) * torch.where((num_checkers > 0)[:, None], block, 1.0)[:, None]
    is_their_pawn = (codes == chess.PAWN + _THEIRS).float()
    goals = torch.where((is_their_pawn > 0)[:, :, None], is_ours[:, None], 1 - is_theirs[:, None])
    replies = by_them * goals + is_their_pawn[:, :, None] * _PAWN_STEPS * is_clear_to_them * (1 - occupied)[:, None]
    has_reply = ((replies * (1 - on_king) * may_go).sum((1, 2)) > 0) & (num_checkers < 2)
    king_steps = _ATTACKS[_KING][king_at] * (1 - is_theirs) * (ours == 0).float()
    has_reply = has_reply | (king_steps.sum(1) > 0)
    for side in (7, 9):
        taker = is_their_pawn * (squares == (jumped + side)[:, None]).float() * _ATTACKS[chess.PAWN + _THEIRS].T[jumped]
        taken = (squares == (jumped + 8)[:, None]).float()
        later = occupied - taker - taken + (squares == jumped[:, None]).float()
        attackers = is_aligned * (1 - taken) * ((between @ later[:, :, None])[:, :, 0] == 0)
        has_reply = has_reply | ((jumped >= 0) & (taker.sum(1) > 0) & (attackers.sum(1) == 0))

    is_zeroing = is_pawn | (captured > 0)
    clock = torch.where(is_zeroing, 0, (before[:, HALFMOVE_CLOCK].long() + 1).clamp(max=MAX_HALFMOVE_CLOCK))
    is_mate = (num_checkers > 0) & ~has_reply
    is_draw = ~is_mate & (~has_reply | _is_dead(kinds, _LIGHT) | (clock >= MAX_HALFMOVE_CLOCK))
    ended = (at_start + at_end).float() @ _ENDS_RIGHT.T
    rights = before[:, CASTLING].float() * (ended == 0)
    features = torch.cat([rights, is_mate.float()[:, None], is_draw.float()[:, None], clock.float()[:, None] / MAX_HALFMOVE_CLOCK], 1)
    return torch.stack([codes, ours, theirs]), features


def _control(reached: Tensor, kinds: Tensor) -> Tensor:
    """Return the control of each square, [N, 64]: the lowest attacker, plus 6 with several; `reached` is [N, a, b]."""
    num = reached.sum(1)
    lowest = 7 - (reached * (7 - kinds)[:, :, None]).amax(1)
    return torch.where(num > 0, lowest + 6 * (num > 1), 0).long()


def _is_dead(kinds: Tensor, light: Tensor) -> Tensor:
    """Return whether neither side can mate by any moves, [N]."""
    num_knights, bishops = (kinds == chess.KNIGHT).sum(1), (kinds == chess.BISHOP).float()
    num_light, num_bishops = (bishops * light).sum(1), bishops.sum(1)
    has_enough = ((kinds == chess.PAWN) | (kinds == chess.ROOK) | (kinds == chess.QUEEN)).any(1)
    one_colour = (num_light == 0) | (num_light == num_bishops)
    return ~has_enough & (((num_knights == 0) & one_colour) | ((num_knights == 1) & (num_bishops == 0)))
