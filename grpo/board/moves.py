"""Legal moves of many positions at once, and the positions after moves, in torch.

Encodings are those of `grpo.board.encoding`; "us" is the side to move.

Legend: N positions, M moves of all positions. A bitboard is a set of squares in one int64.
"""

from typing import Final

import chess
import torch
from torch import Tensor

from grpo.board.actions import NUM_ACTIONS, action_id
from grpo.board.afterstates import (
    ACTION_SQUARES,
    BIT,
    IN_RANK,
    KING_LINES,
    RIGHT_ENDS,
    Sets,
    moved,
    on_lines,
    sets_of,
)
from grpo.board.bitboards import KNIGHT, LINES, UP, advanced, places, rays, shift, shifts, signed, union
from grpo.board.encoding import BLACK_TO_MOVE, CASTLING, EN_PASSANT, HALFMOVE_CLOCK, MAX_HALFMOVE_CLOCK

_PAWN, _KNIGHT, _BISHOP, _ROOK, _QUEEN, _KING = range(6)
_RANK_3: Final = signed(chess.BB_RANK_3)
# King's side, queen's side: squares that must be empty, the king's end square.
_CASTLING: Final = ((chess.BB_F1 | chess.BB_G1, chess.BB_G1), (chess.BB_B1 | chess.BB_C1 | chess.BB_D1, chess.BB_C1))
# A step is a move's end square minus its start square (0-63). A step's plane is the bitboard of the end squares of moves with this step.
_STEPS: Final = (
    *(sign * distance * step for sign in (1, -1) for distance in range(1, 8) for step in LINES),
    *(sign * step for sign in (1, -1) for step in KNIGHT),
    *(sign * step for sign in (1, -1) for step in LINES),  # The king's.
    *(UP, 2 * UP, 9, 7),  # A pawn's.
    *(2, -2),  # Castling.
)
_PAWN_PLANES: Final = (72, 74, 75)  # Planes of the pawn's steps that can promote.
_PROMOTIONS: Final = (None, chess.KNIGHT, chess.BISHOP, chess.ROOK, chess.QUEEN)


def _id(plane: int, end: int, promotion: int | None) -> int:
    start = end - _STEPS[plane]
    if not 0 <= start < 64 or (plane in _PAWN_PLANES and end >= 56) != (promotion is not None):
        return -1
    try:
        return action_id(chess.Move(start, end, promotion), chess.WHITE)
    except ValueError:  # The step leaves the board.
        return -1


_IDS: Final = torch.tensor([[[_id(plane, end, piece) for piece in _PROMOTIONS] for end in range(64)] for plane in range(len(_STEPS))])
"""[planes, 64, 5]: ids of the actions that end on a square by a plane's step, one per promotion piece (first: none); -1 for no action."""


def legal_actions(encodings_NE: Tensor) -> tuple[Tensor, Tensor]:
    """Return all legal moves of N encodings [N, 71]: position [M] and action id [M], sorted by position, then by id."""
    sets = sets_of(encodings_NE)
    device = encodings_NE.device
    planes = _pseudo_legal(sets, encodings_NE)
    # Most planes are empty, so find the ranks (bytes) with a square, and unpack only these.
    ranks = planes.view(torch.uint8).flatten()
    some = places(ranks != 0)
    squares = places(IN_RANK.to(device).index_select(0, ranks[some].int()))
    some, ends = some[squares >> 3], squares & 7
    plane, row, rank = some // (8 * len(encodings_NE)), (some >> 3) % len(encodings_NE), some & 7
    ids = _IDS.to(device)[plane, 8 * rank + ends]
    reached, piece = (ids >= 0).nonzero(as_tuple=True)
    keys = (row[reached] * NUM_ACTIONS + ids[reached, piece]).sort().values
    rows, ids = keys // NUM_ACTIONS, keys % NUM_ACTIONS
    # These moves can leave our king attacked: any move in check, king moves, moves from the king's lines, en passant.
    start, end, _ = ACTION_SQUARES.to(device)[ids].unbind(1)
    bits = BIT.to(device)
    kings = sets.us[_KING]
    king_at = (encodings_NE[:, :64] == 6).to(torch.uint8).argmax(1)
    near = KING_LINES.to(device)[king_at] | kings
    is_passing = ((sets.us[_PAWN][rows] & bits[start]) != 0) & (end == encodings_NE[:, EN_PASSANT].long()[rows] + 39)
    doubtful = (is_attacked(sets, kings)[rows] | ((near[rows] & bits[start]) != 0) | is_passing).nonzero()[:, 0]
    after, touched, _ = moved(sets, rows[doubtful], ids[doubtful])
    start, end = start[doubtful], end[doubtful]
    # A king that castles must not leave, cross or reach an attacked square.
    is_castling = ((after.us[_KING] & touched) != 0) & ((end - start).abs() == 2)
    path = torch.where(is_castling, touched | bits[(start + end) >> 1], after.us[_KING])
    is_legal = torch.ones_like(rows, dtype=torch.bool).index_put((doubtful,), ~is_attacked(after, path))
    return rows[is_legal], ids[is_legal]


def padded_actions(encodings_NE: Tensor) -> tuple[Tensor, Tensor]:
    """Return all legal moves of N encodings as action ids [N, A], padded with 0, and which of them are moves, [N, A] bool."""
    rows, ids = legal_actions(encodings_NE)
    counts = torch.zeros(len(encodings_NE), dtype=torch.int64, device=ids.device).index_add(0, rows, torch.ones_like(rows))
    columns = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    is_legal = torch.arange(max(1, int(counts.max())), device=ids.device) < counts[:, None]
    return torch.zeros_like(is_legal, dtype=torch.int64).index_put((rows, columns), ids), is_legal


def is_attacked(sets: Sets, squares: Tensor) -> Tensor:
    """Return, for each position, whether `sets.them` attack any square of the bitboard `squares` [N]; [N] bool."""
    them = sets.them
    empty = ~(union(sets.us) | union(them))
    lines = on_lines(them)
    attackers = (shift(squares, 9) | shift(squares, 7)) & them[_PAWN]
    for sign in (1, -1):
        attackers = attackers | (union(shifts(squares, KNIGHT, sign)) & them[_KNIGHT]) | (union(shifts(squares, LINES, sign)) & them[_KING])
        attackers = attackers | union(rays(squares.expand(4, -1), empty, sign) & lines)
    return attackers != 0


def _pseudo_legal(sets: Sets, encodings_NE: Tensor) -> Tensor:
    """Return a bitboard per step of `_STEPS` and position, [78, N]: the end squares of moves, which may leave our king attacked."""
    us, them = sets.us, sets.them
    ours, theirs = union(us), union(them)
    empty, free = ~(ours | theirs), ~ours
    planes = []
    for sign in (1, -1):
        front = on_lines(us)
        for _ in range(7):
            front = advanced(front, sign)
            planes.append(front & free)
            front = front & empty
    planes += [shifts(us[kind], steps, sign) & free for kind, steps in ((_KNIGHT, KNIGHT), (_KING, LINES)) for sign in (1, -1)]
    files = encodings_NE[:, EN_PASSANT].long()  # 1-8, or 0 for none; 39 + file is the square on rank 6.
    passed = torch.where(files > 0, BIT.to(files.device)[39 + files], 0)
    single = shift(us[_PAWN], UP) & empty
    double = shift(single & _RANK_3, UP) & empty
    captures = [shift(us[_PAWN], side) & (theirs | passed) for side in (9, 7)]
    rights = encodings_NE[:, CASTLING]
    castling = [
        torch.where((rights[:, side] > 0) & ((empty & between) == between), end, 0) for side, (between, end) in enumerate(_CASTLING)
    ]
    planes.append(torch.stack([single, double, *captures, *castling]))
    return torch.cat(planes)


def positions_after(encodings_BE: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """Return the encodings [M, 71] of the positions after M legal moves, seen by the opponent, who is to move.

    Move m is action `ids[m]` on board `encodings_BE[rows[m]]`. Each two-square pawn move sets the en-passant file, also if no capture is
    legal.
    """
    device = encodings_BE.device
    before = encodings_BE[rows]
    sets, touched, is_zeroing = moved(sets_of(encodings_BE), rows, ids)
    planes = torch.cat([sets.them, sets.us])
    ranks = planes.view(torch.uint8).view(12, -1, 8).flip(2)  # The opponent sees the ranks reversed.
    is_on = IN_RANK.to(device).index_select(0, ranks.flatten().int()).view(12, -1, 64)
    codes = torch.arange(1, 13, device=device, dtype=torch.uint8)
    after = torch.zeros_like(before)
    after[:, :64] = (is_on * codes[:, None, None]).sum(0, dtype=torch.uint8)
    for index, ended in enumerate(RIGHT_ENDS):
        # Columns: our king's side, our queen's, theirs. `^ 2` swaps ours and theirs, because `CASTLING.start` is a multiple of 4.
        after[:, CASTLING.start + index ^ 2] = before[:, CASTLING.start + index] * ((touched & signed(ended)) == 0)
    jumped = (sets.jumped[:, None] & BIT.to(device)[16:24]) != 0
    after[:, EN_PASSANT] = (jumped * torch.arange(1, 9, device=device)).sum(1)
    after[:, HALFMOVE_CLOCK] = torch.where(is_zeroing, 0, (before[:, HALFMOVE_CLOCK] + 1).clamp(max=MAX_HALFMOVE_CLOCK))
    after[:, BLACK_TO_MOVE] = 1 - before[:, BLACK_TO_MOVE]
    return after
