"""Tables of text as wide as the terminal, times and durations as people read them."""

import shutil
import textwrap
import time
from collections.abc import Iterable, Sequence
from typing import Final

_WIDEST: Final = 110
_GAP: Final = "  "


def width() -> int:
    """Return how wide a line may be."""
    return min(shutil.get_terminal_size().columns, _WIDEST)


def text_table(rows: Iterable[Sequence[str]], *, indent: str = "", folds: bool = True) -> str:
    """Return rows as aligned columns; the last column is folded where a line would be too wide, if that is wanted."""
    lines = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*(line[:-1] for line in lines), strict=True)]
    made = []
    for *cells, last in lines:
        head = indent + "".join(f"{cell:<{size}}{_GAP}" for cell, size in zip(cells, widths, strict=True))
        made.append(wrapped(last, head) if folds else f"{head}{last}".rstrip())
    return "\n".join(made)


def wrapped(text: str, head: str = "") -> str:
    """Return a text behind a head, folded below itself where it is too wide; at least some words of it stand in a line."""
    room = max(width(), len(head) + 30)
    return (
        textwrap.fill(
            text, room, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False, break_long_words=False
        ).rstrip()
        or head.rstrip()
    )


def when(seconds: float) -> str:
    """Return a time since 1970 as day and minute, in this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def duration(seconds: float | None) -> str:
    """Return a duration in the two units that matter.

    >>> [duration(each) for each in (0.4, 75, 3_725, None)]
    ['0 s', '1 min 15 s', '1 h 02 min', '']
    """
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
