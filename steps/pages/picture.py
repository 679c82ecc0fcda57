"""Intervals as pictures of characters, in lines of at most 80. No line begins with a space: Metaflow strips those."""

import math
from collections.abc import Iterator, Mapping
from typing import Final

from grpo.match.intervals import Estimate, Unit

_LABEL_WIDTH: Final = 29
_BAR_HALF: Final = 12
"""Characters of a text bar on each side of its middle."""
_BAR_WIDTH: Final = 2 * _BAR_HALF + 1
_SCALES: Final = (50, 75, 100, 150, 200, 300, 400, 600, 800, 1_200, 1_600)


def gain_bars(estimates: Mapping[str, Estimate]) -> list[str]:
    r"""Return a picture of Elo gains, by label: a scale, then a bar for each; nothing for none.

    >>> print("\n".join(gain_bars({"own start": Estimate(value=53, low=31, high=75)})))
    gain in Elo, against          -75         0         +75
    own start                                 |    [--o---] +53 [+31, +75]
    """
    widest = max((max(abs(each.low), abs(each.high)) for each in estimates.values()), default=0.0)
    limit = next(scale for scale in _SCALES if scale >= min(widest, _SCALES[-1]))
    scale = f"{f'-{limit:,}':<{_BAR_HALF}}0{f'+{limit:,}':>{_BAR_HALF}}"
    return [_line("gain in Elo, against", scale), *_bars(estimates, -limit, limit)] if estimates else []


def ladder_bars(places: Mapping[str, Estimate]) -> list[str]:
    r"""Return the same of places on the ladder, in Elo above a random mover, between the hundreds around them.

    >>> print("\n".join(ladder_bars({"pretrained": Estimate(value=1_230, low=1_151, high=1_310)})))
    Elo above a random mover      1,100               1,400
    pretrained                        [-----o------]        +1,230 [+1,151, +1,310]
    """
    left = 100 * math.floor(min((each.low for each in places.values()), default=0.0) / 100)
    right = max(left + 100, 100 * math.ceil(max((each.high for each in places.values()), default=0.0) / 100))
    scale = f"{left:<{_BAR_HALF},}{right:>{_BAR_HALF + 1},}"
    return [_line("Elo above a random mover", scale), *_bars(places, left, right)] if places else []


def _bars(estimates: Mapping[str, Estimate], left: int, right: int) -> Iterator[str]:
    """Draw intervals between two Elo values, with a mark at 0 where it lies between them."""

    def place(elo: float) -> int:
        return round((max(left, min(right, elo)) - left) / (right - left) * (_BAR_WIDTH - 1))

    for label, each in estimates.items():
        low, value, high = place(each.low), place(each.value), place(each.high)
        bar = ["-" if low < at < high else " " for at in range(_BAR_WIDTH)]
        if left < 0 < right:
            bar[place(0)] = "|"
        bar[low], bar[high], bar[value] = "[", "]", "o"
        yield _line(label, f"{''.join(bar)} {each.text(Unit.ELO)}")


def _line(label: str, rest: str) -> str:
    return f"{label:<{_LABEL_WIDTH}} {rest}"
