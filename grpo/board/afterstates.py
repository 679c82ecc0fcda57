"""Afterstates (positions after a move) of many boards: pieces, control of squares, mate, draw.

Legend: B boards, N moves of all boards, M (move, square) pairs. "Us" is the side that has just moved (pawns move up), "them" the side to
reply. A side controls the squares that its pieces attack. A bitboard is a set of squares in one int64: bit s is square s (a1 = 0).
"""

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final

import chess
import torch
from torch import Tensor

from grpo.board.actions import ACTIONS
from grpo.board.bitboards import DOWN, KNIGHT, LINES, UP, overlap, places, rays, shift, shifts, signed, union
from grpo.board.encoding import CASTLING, HALFMOVE_CLOCK, MAX_HALFMOVE_CLOCK

NUM_CONTROLS: Final = 13
"""Codes of a side's control: 0 without attackers; 1-6 for the least valuable attacker, pawn to king; 6 more if several attack."""
ACTION_SQUARES: Final = torch.tensor([[move.from_square, move.to_square, move.promotion or 0] for move in ACTIONS])
"""[1968, 3]: start, end, and promotion piece of python-chess or 0."""
RIGHT_ENDS: Final = (chess.BB_E1 | chess.BB_H1, chess.BB_E1 | chess.BB_A1, chess.BB_E8 | chess.BB_H8, chess.BB_E8 | chess.BB_A8)
"""Squares per castling right, in the encoding's order. A move from or to a square ends the right."""
NUM_FEATURES: Final = 4 + 1 + 2

_PAWN, _KNIGHT, _BISHOP, _ROOK, _QUEEN, _KING = range(6)
BIT: Final = torch.tensor([signed(1 << square) for square in range(64)])
KING_LINES: Final = torch.tensor(
    [signed(chess.BB_RANK_ATTACKS[s][0] | chess.BB_FILE_ATTACKS[s][0] | chess.BB_DIAG_ATTACKS[s][0]) for s in range(64)]
)
_KING_REACH: Final = torch.tensor([signed(chess.BB_KING_ATTACKS[s]) for s in range(64)])
_RANK_6: Final = signed(chess.BB_RANK_6)
_LIGHT: Final = signed(chess.BB_LIGHT_SQUARES)
# [256, 8]: whether a set of a rank's squares (8 bits) has each file.
IN_RANK: Final = ((torch.arange(256)[:, None] >> torch.arange(8)) & 1).bool()
# [12 planes x 256 sets of a rank's squares]: the plane's part of the rank's codes, one byte per square.
_RANK_CODES: Final = (torch.tensor([1, 2, 4, 8] + 2 * [1, 2, 4, 6])[:, None] * (IN_RANK << 8 * torch.arange(8)).sum(1)).flatten()
_PLANE_ROWS: Final = 256 * torch.arange(12, dtype=torch.int32)[:, None]


@dataclass(frozen=True, slots=True)
class Sets:
    """N positions as bitboards (int64)."""

    us: Tensor  # [6, N], our pawns to king.
    them: Tensor  # [6, N], their pawns to king.
    their_king: Tensor  # [N], square of their king.
    jumped: Tensor  # [N], bitboard of the square that a pawn has just jumped over, or 0.

    def select(self, rows: Tensor) -> "Sets":
        return Sets(self.us[:, rows], self.them[:, rows], self.their_king[rows], self.jumped[rows])


@dataclass(frozen=True, kw_only=True, slots=True)
class Afterstates:
    """Squares that N moves change. Codes [3, ...] are the encoding's piece, our control, their control."""

    board: Tensor  # [3, B, 64], codes before any move.
    moves: Tensor  # [M], index of the move, ascending.
    squares: Tensor  # [M]
    before: Tensor  # [3, M]
    after: Tensor  # [3, M]
    features: Tensor  # [N, 7] float32: castling rights in the encoding's order, mate, draw, half-move clock / 100.


def afterstates(encodings_BE: Tensor, rows: Tensor, ids: Tensor) -> Afterstates:
    """Return the changes of N legal moves on `encodings_BE` [B, 71]. Move n is action `ids[n]` on board `rows[n]`.

    Control ignores pins. Our control passes through their king, because a square behind the king is no escape.
    """
    root = sets_of(encodings_BE)
    board = _codes(_planes(root, *attacks(root)))
    planes, features = _played(root, encodings_BE, rows, ids)
    before, after = board.index_select(1, rows), _codes(planes)
    changed = places(_by_square(union(before ^ after)[None]) != 0)
    before, after = (torch.stack([part.index_select(0, changed) for part in _by_square(codes)]).int() for codes in (before, after))
    return Afterstates(
        board=_by_square(board).int().view(3, -1, 64),
        moves=changed >> 6,
        squares=changed & 63,
        before=before,
        after=after,
        features=features,
    )


def _played(root: Sets, encodings_BE: Tensor, rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    sets, touched, is_zeroing = moved(root, rows, ids)
    attacked, twice = attacks(sets)
    clock = torch.where(is_zeroing, 0, (encodings_BE[:, HALFMOVE_CLOCK].long()[rows] + 1).clamp(max=MAX_HALFMOVE_CLOCK))
    is_mate, is_draw = _endings(sets, attacked, clock)
    rights = encodings_BE[:, CASTLING].long()[rows]
    kept = [(rights[:, index] > 0) & ((touched & signed(ended)) == 0) for index, ended in enumerate(RIGHT_ENDS)]
    features = torch.stack([*(flag.float() for flag in (*kept, is_mate, is_draw)), clock.float() / MAX_HALFMOVE_CLOCK], 1)
    return _planes(sets, attacked, twice), features


def sets_of(encodings_BE: Tensor) -> Sets:
    codes = encodings_BE[:, :64]
    is_on = codes == torch.arange(1, 13, dtype=torch.uint8, device=codes.device)[:, None, None]
    sets = torch.where(is_on, BIT.to(codes.device), 0).sum(2)
    return Sets(sets[:6], sets[6:], is_on[11].to(torch.uint8).argmax(1), torch.zeros_like(sets[0]))


def moved(before: Sets, rows: Tensor, ids: Tensor) -> tuple[Sets, Tensor, Tensor]:
    """Return the afterstates, bitboards of start and end square [N], and whether the move captures or moves a pawn [N]."""
    device = ids.device
    start, end, promotion = ACTION_SQUARES.to(device)[ids].unbind(1)
    bits = BIT.to(device)
    start_bit, end_bit = bits[start], bits[end]
    us, them = before.us[:, rows], before.them[:, rows]
    is_pawn = (us[_PAWN] & start_bit) != 0
    is_king = (us[_KING] & start_bit) != 0
    captured = (union(them) & end_bit) != 0
    en_passant = torch.where(is_pawn & (((end - start) & 7) != 0) & ~captured, shift(end_bit, DOWN), 0)
    them = them & ~(end_bit | en_passant)
    jump = torch.where(is_king, end - start, 0)
    rook_from = torch.where(jump == 2, chess.BB_H1, torch.where(jump == -2, chess.BB_A1, 0))
    rook_to = torch.where(jump == 2, chess.BB_F1, torch.where(jump == -2, chess.BB_D1, 0))
    is_mover = (us & start_bit) != 0
    us = us & ~(start_bit | rook_from)
    kinds = torch.arange(1, 7, device=device)[:, None]
    lands = (kinds == promotion) | ((promotion == 0) & is_mover)
    us |= torch.where(lands, end_bit, 0)
    us[_ROOK] |= rook_to
    jumped = torch.where(is_pawn & (end - start == 2 * UP), shift(start_bit, UP), 0)
    return Sets(us, them, before.their_king[rows], jumped), start_bit | end_bit, is_pawn | captured


def attacks(sets: Sets) -> tuple[Tensor, Tensor]:
    """Return squares by kind of the least valuable attacker, [6, 2, N] (us first), and squares with several attackers, [2, N]."""
    both = torch.stack([sets.us, sets.them], 1)
    occupied = union(both.flatten(0, 1))
    # Our lines pass through their king.
    empty = torch.stack([~(occupied & ~sets.them[_KING]), ~occupied])
    # [4 lines, 2 kinds (rooks or bishops; queens), 2 sides, N]
    sliders = both[[_ROOK, _QUEEN, _BISHOP, _QUEEN] * 2].view(4, 2, 2, -1)
    # [2 (straight, diagonal), 2 kinds, 2 sides, N]
    lines, crossed = overlap(torch.cat([rays(sliders, empty, sign) for sign in (1, -1)]).view(4, 2, 2, 2, -1))
    pawns = torch.stack([torch.stack([shift(sets.us[_PAWN], side), shift(sets.them[_PAWN], -side)]) for side in (9, 7)])
    knights, kings = (
        torch.cat([shifts(both[kind], steps, sign) for sign in (1, -1)]) for kind, steps in ((_KNIGHT, KNIGHT), (_KING, LINES))
    )
    bishops, rooks = ((lines[pair, 0], crossed[pair, 0]) for pair in (1, 0))
    queens = overlap(lines[:, 1], crossed[:, 1])
    seen, twice = overlap(pawns)
    lowest = [seen]
    for attacked, several in (overlap(knights), bishops, rooks, queens, overlap(kings)):
        again = attacked & seen
        twice |= again
        twice |= several
        lowest.append(attacked ^ again)
        seen = seen | attacked
    return torch.stack(lowest), twice


def _planes(sets: Sets, lowest: Tensor, twice: Tensor) -> Tensor:
    """Return the codes' bit planes [12, N]: four of the piece, four of our control, four of their control.

    A control's planes weigh 1, 2, 4 (least valuable attacker) and 6 (several attackers).
    """
    ours, theirs = torch.stack([*_code_planes([*lowest], 3), twice], 1)
    return torch.cat([torch.stack(_code_planes([*sets.us, *sets.them], 4)), ours, theirs])


def _code_planes(sets: list[Tensor], num_planes: int) -> list[Tensor]:
    return [reduce(or_, [squares for code, squares in enumerate(sets, start=1) if code >> plane & 1]) for plane in range(num_planes)]


def _codes(planes: Tensor) -> Tensor:
    """Return codes [3, N, 8] from planes [12, N]. An int64 holds a rank's codes, one byte per square, the a-file lowest."""
    rows = planes.view(torch.uint8).int() + _PLANE_ROWS.to(planes.device)
    return _RANK_CODES.to(planes.device).index_select(0, rows.flatten()).view(3, 4, -1, 8).sum(1)


def _by_square(codes: Tensor) -> Tensor:
    """Unpack codes [3, N, 8] to [3, N * 64] uint8."""
    return codes.view(torch.uint8).flatten(1)


def _endings(sets: Sets, attacked: Tensor, clock: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether moves mate, and whether they draw (stalemate, insufficient material, half-move clock), [N] bool each."""
    by_us, king, king_at = union(attacked[:, 0]), sets.them[_KING], sets.their_king
    theirs, ours = union(sets.them), union(sets.us)
    is_check = (by_us & king) != 0
    has_step = (_KING_REACH.to(king.device)[king_at] & ~theirs & ~by_us) != 0
    # Only pawns on their king's lines can be pinned.
    pawn_steps = shift(sets.them[_PAWN] & ~KING_LINES.to(king.device)[king_at], DOWN) & ~(theirs | ours)
    has_reply = has_step | (~is_check & (pawn_steps != 0))
    rows = (~has_reply).nonzero()[:, 0]
    can_reply = has_reply.index_put((rows,), _has_other_reply(sets.select(rows), is_check[rows]))
    is_mate = is_check & ~can_reply
    return is_mate, ~is_mate & (~can_reply | _is_insufficient_material(sets) | (clock >= MAX_HALFMOVE_CLOCK))


def _is_insufficient_material(sets: Sets) -> Tensor:
    """Return `chess.Board.is_insufficient_material`, [N] bool."""
    both = sets.us | sets.them
    knights, bishops = both[_KNIGHT], both[_BISHOP]
    # x & (x - 1) removes the lowest bit.
    one_color = ((bishops & _LIGHT) == 0) | ((bishops & ~_LIGHT) == 0)
    one_knight = ((knights & (knights - 1)) == 0) & (bishops == 0)
    has_enough = (both[_PAWN] | both[_ROOK] | both[_QUEEN]) != 0
    return ~has_enough & (((knights == 0) & one_color) | one_knight)


def _has_other_reply(sets: Sets, is_check: Tensor) -> Tensor:
    """Return whether a piece other than their king can move, [N]. Castling needs no test, because a king that can castle can step.

    Tensors [4, N] have a row per line of `LINES`. Sign 1 is up or right. A ray ends with the first piece.
    """
    us, them, king = sets.us, sets.them, sets.them[_KING]
    theirs, ours = union(them), union(us)
    occupied = theirs | ours
    empty = ~occupied
    nothing = torch.zeros_like(king)
    our_lines, their_lines = (on_lines(side) for side in (us, them))
    # Rays go from their king along each line. Our slider on a ray gives check. Their piece on a ray (shield) is pinned if our slider
    # (pinner) is behind it.
    checkers = _near_attackers(king, us[_PAWN], us)
    between, pinned, has_slide = nothing, nothing, torch.zeros_like(is_check)
    for sign in (1, -1):
        ray = rays(king.expand(4, -1), empty, sign)
        giving = ray & our_lines
        checkers = checkers | union(giving)
        between = between | union(torch.where(giving != 0, ray, 0))
        shield = ray & theirs
        pinner = rays(shield, empty, sign) & our_lines
        shield = torch.where(pinner != 0, shield, 0)
        pinned = pinned | union(shield)
        # Pinned pieces that can move: a slider of this line, a pawn on the file, a pawn that captures the pinner.
        has_slide = has_slide | (union(shield & their_lines) != 0) | ((shift(shield[0] & them[_PAWN], DOWN) & empty) != 0)
        if sign < 0:
            has_slide = has_slide | (shift(shield[1] & them[_PAWN], -9) & pinner[1] != 0)
            has_slide = has_slide | (shift(shield[3] & them[_PAWN], -7) & pinner[3] != 0)
    # Targets in check are the checker's square and the squares between.
    targets = torch.where(is_check, checkers | between, ~theirs) & ~theirs
    free = them & ~pinned
    reached = nothing
    for sign in (1, -1):
        reached = reached | union(shifts(free[_KNIGHT], KNIGHT, sign)) | union(rays(on_lines(free), empty, sign))
    pawns = free[_PAWN]
    step = shift(pawns, DOWN) & empty
    reached = reached | ((shift(pawns, -9) | shift(pawns, -7)) & ours) | step | (shift(step & _RANK_6, DOWN) & empty)
    is_double = (checkers & (checkers - 1)) != 0  # Two checkers: only the king can move.
    has_reply = ~is_double & (((reached & targets) != 0) | (~is_check & has_slide))
    # En passant removes two pawns from one rank, which can uncover the king.
    for side in (9, 7):
        taker, taken = shift(sets.jumped, side) & them[_PAWN], shift(sets.jumped, UP)
        if not taker.any():
            continue
        occupied_after = (occupied & ~taker & ~taken) | sets.jumped
        attackers = _near_attackers(king, us[_PAWN] & ~taken, us)
        for sign in (1, -1):
            attackers = attackers | union(rays(king.expand(4, -1), ~occupied_after, sign) & our_lines)
        has_reply = has_reply | ((taker != 0) & (attackers == 0))
    return has_reply


def on_lines(side: Tensor) -> Tensor:
    """Return the sliders of `side` [6, N] that move along each of the `LINES`, [4, N]."""
    straight, diagonal = side[_ROOK] | side[_QUEEN], side[_BISHOP] | side[_QUEEN]
    return torch.stack([straight, diagonal, straight, diagonal])


def _near_attackers(king: Tensor, pawns: Tensor, us: Tensor) -> Tensor:
    """Return the knights of `us` [6, N], and the `pawns` [N], that attack `king` [N]."""
    jumps = union(torch.cat([shifts(king, KNIGHT, sign) for sign in (1, -1)]))
    return (jumps & us[_KNIGHT]) | ((shift(king, -9) | shift(king, -7)) & pawns)
