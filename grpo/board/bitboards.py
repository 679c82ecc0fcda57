"""Bitboards in torch. A bitboard is a set of squares in one int64: bit s is square s (a1 = 0, h8 = 63).

The last dimension is N positions. One call shifts in D directions, because a call costs more than its arithmetic. A shift can wrap around
the board's edge, and a right shift copies the sign bit (h8). `_landing` removes both faults.
"""

from functools import cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

UP: Final = 8
DOWN: Final = -8
# A step is the difference of two squares' numbers; a sign of 1 or -1 gives the direction.
LINES: Final = (8, 9, 1, 7)  # File, a1-h8 diagonal, rank, h1-a8 diagonal.
KNIGHT: Final = (17, 15, 10, 6)
_LINES_2: Final = (16, 18, 2, 14)
_LINES_4: Final = (32, 36, 4, 28)

# This tensor is freed at once, so glibc keeps freed memory up to twice the tensor's size. Returning memory to Linux would cost a fifth of
# the time.
torch.empty(31 << 20, dtype=torch.uint8)


def signed(squares: int) -> int:
    return squares - (1 << 64) if squares >> 63 else squares


@cache
def _landing(step: int) -> int:
    # A step moves at most 2 files.
    file_step = (step + 4) % 8 - 4
    rank_step = (step - file_step) // 8
    return signed(sum(1 << square for square in range(64) if 0 <= square % 8 - file_step < 8 and 0 <= square // 8 - rank_step < 8))


@cache
def _table(values: tuple[int, ...], num_dimensions: int, device: torch.device) -> Tensor:
    """Return D values as [D, 1, ..., 1]. The cache saves a tenth of small batches' time."""
    return torch.tensor(values, device=device).view(-1, *[1] * (num_dimensions - 1))


def _moved(sets: Tensor, steps: tuple[int, ...], sign: int, num_dimensions: int) -> Tensor:
    amounts = _table(steps, num_dimensions, sets.device)
    return sets << amounts if sign > 0 else sets >> amounts


@cache
def _landings(steps: tuple[int, ...], sign: int, num_dimensions: int, device: torch.device) -> Tensor:
    return _table(tuple(_landing(sign * step) for step in steps), num_dimensions, device)


def shift(sets: Tensor, step: int) -> Tensor:
    """Shift sets [..., N] by a step and drop squares off the board."""
    return (sets << step if step > 0 else sets >> -step) & _landing(step)


def shifts(sets: Tensor, steps: tuple[int, ...], sign: int) -> Tensor:
    """Shift sets [..., N] by each of D steps times `sign` (1 or -1), [D, ..., N]."""
    dimensions = sets.dim() + 1
    return _moved(sets, steps, sign, dimensions).bitwise_and_(_landings(steps, sign, dimensions, sets.device))


def advanced(sets: Tensor, sign: int) -> Tensor:
    """Shift sets [4, ..., N], one per line of `LINES`, by one step of the line, up or right for `sign` 1."""
    return _moved(sets, LINES, sign, sets.dim()).bitwise_and_(_landings(LINES, sign, sets.dim(), sets.device))


def rays(sliders: Tensor, empty: Tensor, sign: int) -> Tensor:
    """Return the squares that `sliders` [D, ..., N] attack, one set per line of `LINES`.

    `sign`: 1 (toward higher squares) or -1. A ray passes the `empty` squares [..., N] and includes the first piece.
    """
    dimensions = sliders.dim()
    landing = _landings(LINES, sign, dimensions, sliders.device)
    reach = empty & landing
    passed = _moved(sliders, LINES, sign, dimensions)
    # Changed in place, because new memory takes longer than the arithmetic.
    passed &= reach
    passed |= sliders
    # Fills of 1, 2 and 4 steps cover a line's 7 squares (https://www.chessprogramming.org/Kogge-Stone_Algorithm).
    for steps, next_steps in ((LINES, _LINES_2), (_LINES_2, _LINES_4)):
        reach &= _moved(reach, steps, sign, dimensions)
        step = _moved(passed, next_steps, sign, dimensions)
        step &= reach
        passed |= step
    return _moved(passed, LINES, sign, dimensions).bitwise_and_(landing)


def union(sets: Tensor) -> Tensor:
    """Return the union of K sets: [K, ..., N] -> [..., N]."""
    count = sets.shape[0]
    while count > 1:
        half = count // 2
        joined = sets[:half] | sets[half : 2 * half]
        if count % 2:
            joined[0] |= sets[-1]
        sets, count = joined, half
    return sets[0]


def overlap(once: Tensor, twice: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the squares in any, and in at least two, of K sets (K a power of 2): [K, ..., N] -> [..., N].

    A square in any of `twice` [K, ..., N] counts as in two.
    """
    half = once.shape[0] // 2
    while half:
        one, other = once[:half], once[half:]
        both = one & other
        if twice is not None:
            both |= twice[:half]
            both |= twice[half:]
        once, twice, half = one | other, both, half // 2
    assert twice is not None
    return once[0], twice[0]


def places(mask: Tensor) -> Tensor:
    """Return the indices of True in a flattened mask, ascending."""
    # Numpy takes a fifth of torch's time.
    return mask.flatten().nonzero()[:, 0] if mask.is_cuda else torch.from_numpy(np.flatnonzero(mask.numpy()))
