"""Game phase of a position, by Lichess's rule (`Divider` of scalachess) without the rule's mixedness score.

- endgame: both sides together have at most 6 queens, rooks, bishops and knights
- opening: more than 10 together, and each side has at least 4 pieces on its first rank; the king counts, pawns do not
- middlegame: other positions
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import chess


class Phase(StrEnum):
    OPENING = "opening"
    MIDDLEGAME = "middlegame"
    ENDGAME = "endgame"


PHASES: Final[tuple[Phase, ...]] = tuple(Phase)  # In the order of a game.
_FIRST_RANK, _LAST_RANK = 0xFF, 0xFF << 56  # Bit s is square s.


def phase_of(board: "chess.BaseBoard") -> Phase:
    """Return the phase.

    >>> import chess
    >>> phase_of(chess.Board("8/5k2/8/8/3R4/8/5K2/8 w - - 0 1"))
    <Phase.ENDGAME: 'endgame'>
    """
    pieces = (board.queens | board.rooks | board.bishops | board.knights).bit_count()
    if pieces <= 6:
        return Phase.ENDGAME
    non_pawns = board.occupied & ~board.pawns
    white_home = (non_pawns & board.occupied_co[True] & _FIRST_RANK).bit_count()
    black_home = (non_pawns & board.occupied_co[False] & _LAST_RANK).bit_count()
    if pieces > 10 and min(white_home, black_home) >= 4:
        return Phase.OPENING
    return Phase.MIDDLEGAME
