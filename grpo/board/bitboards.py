"""Bitboards in torch. A bitboard is a set of squares in one int64: bit s is square s (a1 = 0, h8 = 63).

The last dimension is N positions. One call shifts in D directions, because a call costs more than its arithmetic. A shift can wrap around
the board's edge, and a right shift copies the sign bit (h8). `_LANDING` removes both faults.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

UP: Final = 8
DOWN: Final = -8
# A step is the difference of two squares' numbers; a sign of 1 or -1 gives the direction.
LINES: Final = (8, 9, 1, 7)  # File, a1-h8 diagonal, rank, h1-a8 diagonal.
KNIGHT: Final = (17, 15, 10, 6)

# Freeing a large tensor makes Linux keep up to 64 MB of freed memory. To return and fetch it again would take a fifth of the time.
torch.empty(31 << 20, dtype=torch.uint8)


def signed(squares: int) -> int:
    return squares - (1 << 64) if squares >> 63 else squares


def _landing(step: int) -> int:
    """Return the squares on which a step ends without leaving the board."""
    # At most 2 files to either side.
    file_step = (step + 4) % 8 - 4
    rank_step = (step - file_step) // 8
    return signed(sum(1 << square for square in range(64) if 0 <= square % 8 - file_step < 8 and 0 <= square // 8 - rank_step < 8))


_LANDING: Final = {
    (steps, sign): torch.tensor([_landing(sign * step) for step in steps])
    for steps in (*((step,) for step in (8, 9, 7)), LINES, KNIGHT)
    for sign in (1, -1)
}
_AMOUNTS: Final = {steps: torch.tensor(steps) for steps, _ in _LANDING}


def _moved(squares: Tensor, amounts: Tensor, sign: int) -> Tensor:
    return squares << amounts if sign > 0 else squares >> amounts


def _in_front(table: Tensor, like: Tensor) -> Tensor:
    """Return `table` [D] as [D, 1, ..., 1], which broadcasts over `like`."""
    return table.to(like.device).view(-1, *[1] * like.dim())


def shift(squares: Tensor, step: int) -> Tensor:
    """Shift sets [..., N] by a step (8, 9, 7 or the negative) and drop squares off the board."""
    return shifts(squares, (abs(step),), 1 if step > 0 else -1)[0]


def shifts(squares: Tensor, steps: Sequence[int], sign: int) -> Tensor:
    """Shift sets [..., N] by each step times `sign` (1 or -1), [D, ..., N]; `steps` is `LINES`, `KNIGHT`, (8,), (9,) or (7,)."""
    key = tuple(steps)
    return _moved(squares, _in_front(_AMOUNTS[key], squares), sign) & _in_front(_LANDING[key, sign], squares)


def advanced(sets: Tensor, sign: int) -> Tensor:
    """Shift sets [4, ..., N], one per line of `LINES`, by one step of the line, up or right for `sign` 1."""
    return _moved(sets, _in_front(_AMOUNTS[LINES], sets[0]), sign) & _in_front(_LANDING[LINES, sign], sets[0])


def rays(sliders: Tensor, empty: Tensor, sign: int) -> Tensor:
    """Return the squares that `sliders` [D, ..., N] attack, one set per line of `LINES`.

    `sign` is 1 (toward higher squares) or -1. A ray passes the `empty` squares [..., N] and includes the first piece.
    """
    amounts, landing = _in_front(_AMOUNTS[LINES], sliders[0]), _in_front(_LANDING[LINES, sign], sliders[0])
    reach = empty & landing
    passed = _moved(sliders, amounts, sign)
    # Here and below, a change in place spares memory, which takes longer than the arithmetic.
    passed &= reach
    passed |= sliders
    # Fills of 1, 2 and 4 steps cover a line's 7 squares (https://www.chessprogramming.org/Kogge-Stone_Algorithm).
    for times in (1, 2):
        reach &= _moved(reach, times * amounts, sign)
        step = _moved(passed, 2 * times * amounts, sign)
        step &= reach
        passed |= step
    return _moved(passed, amounts, sign).bitwise_and_(landing)


def union(sets: Tensor) -> Tensor:
    """Return the union of K sets: [K, ..., N] -> [..., N]."""
    while len(sets) > 1:
        half = len(sets) // 2
        joined = sets[:half] | sets[half : 2 * half]
        if len(sets) % 2:
            joined[0] |= sets[-1]
        sets = joined
    return sets[0]


def overlap(once: Tensor, twice: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the squares in any, and in at least two, of K sets: [K, ..., N] -> [..., N]. `twice` [K, ..., N] adds to the latter."""
    while len(once) > 1:
        half = len(once) // 2
        parts = [once[:half], once[half : 2 * half]]
        joined, both = parts[0] | parts[1], parts[0] & parts[1]
        if twice is not None:
            both |= twice[:half]
            both |= twice[half : 2 * half]
        if len(once) % 2:
            both[0] |= joined[0] & once[-1]
            joined[0] |= once[-1]
            if twice is not None:
                both[0] |= twice[-1]
        once, twice = joined, both
    return once[0], torch.zeros_like(once[0]) if twice is None else twice[0]


def places(mask: Tensor) -> Tensor:
    """Return the indices of True in a flattened mask, ascending."""
    # Numpy takes a fifth of torch's time.
    return mask.flatten().nonzero()[:, 0] if mask.is_cuda else torch.from_numpy(np.flatnonzero(mask.numpy()))
