"""Bitboards in torch: positions as sets of squares, one int64 a set, for thousands of positions at once.

Bit s of a set is square s (a1 = 0, h8 = 63). A tensor holds N sets in its last dimension. The functions take all directions of a sign at
once, because operations on small tensors cost mostly their call.

Int64 has a sign, so that a shift to the right copies bit 63: masks of the squares on which a step can land remove these copies, and the
squares that wrap around the edge.

Legend: D = 4 directions, N positions.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

UP: Final = 8
DOWN: Final = -8
STRAIGHT: Final = (8, 1)
DIAGONAL: Final = (9, 7)
LINES: Final = (*STRAIGHT, *DIAGONAL)
"""Steps of the lines on which queens move, each to be taken with both signs."""
KNIGHT: Final = (17, 15, 10, 6)
"""Steps of a knight, likewise."""


def signed(squares: int) -> int:
    """Return a set of squares as a signed 64-bit integer, as torch stores it."""
    return squares - (1 << 64) if squares >> 63 else squares


def _landing(step: int) -> int:
    """Return the squares on which a step can end without leaving the board."""
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
    """Return a table [D] as [D, 1, ..., 1], so that it spreads over the dimensions of a tensor."""
    return table.to(like.device).view(-1, *[1] * like.dim())


def shift(squares: Tensor, step: int) -> Tensor:
    """Return the squares one step further, without those that leave the board; the step is one of 8, 9, 7 or their negatives."""
    return shifts(squares, (abs(step),), 1 if step > 0 else -1)[0]


def shifts(squares: Tensor, steps: Sequence[int], sign: int) -> Tensor:
    """Return the squares one step further in each direction, [D, ..., N], of squares [..., N]."""
    key = tuple(steps)
    return _moved(squares, _in_front(_AMOUNTS[key], squares), sign) & _in_front(_LANDING[key, sign], squares)


def rays(sliders: Tensor, empty: Tensor, sign: int) -> Tensor:
    """Return the squares that sliders attack on each line: up to and including the first piece (a Kogge-Stone fill), [D, ..., N].

    Args:
        sliders: [D, ..., N], those of each line of `LINES`.
        empty: [..., N], the squares without a piece.
        sign: in which direction of the lines.
    """
    amounts, landing = _in_front(_AMOUNTS[LINES], sliders[0]), _in_front(_LANDING[LINES, sign], sliders[0])
    reach = empty & landing
    found = sliders | (reach & _moved(sliders, amounts, sign))
    for times in (1, 2):
        reach = reach & _moved(reach, times * amounts, sign)
        found = found | (reach & _moved(found, 2 * times * amounts, sign))
    return _moved(found, amounts, sign) & landing


def union(sets: Tensor) -> Tensor:
    """Return the union of sets [K, ..., N] over their first dimension, [..., N]."""
    while len(sets) > 1:
        half = len(sets) // 2
        joined = sets[:half] | sets[half : 2 * half]
        sets = torch.cat([joined, sets[2 * half :]]) if len(sets) % 2 else joined
    return sets[0]


def union_and_overlap(sets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squares that are in any of the sets [K, ..., N], and those that are in two or more, [..., N] each."""
    once, twice = sets, torch.zeros_like(sets)
    while len(once) > 1:
        half = len(once) // 2
        one, other = once[:half], once[half : 2 * half]
        both = twice[:half] | twice[half : 2 * half] | (one & other)
        if len(once) % 2:
            once, twice = torch.cat([one | other, once[2 * half :]]), torch.cat([both, twice[2 * half :]])
        else:
            once, twice = one | other, both
    return once[0], twice[0]
