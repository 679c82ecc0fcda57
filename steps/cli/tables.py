"""Formats text tables, times and durations."""

import time
from collections.abc import Iterable, Sequence


def text_table(rows: Iterable[Sequence[str]], *, indent: str = "") -> str:
    """Return rows as aligned columns."""
    lines = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*(line[:-1] for line in lines), strict=True)]
    made = []
    for *cells, last in lines:
        head = indent + "".join(f"{cell:<{size}}  " for cell, size in zip(cells, widths, strict=True))
        made.append(f"{head}{last}".rstrip())
    return "\n".join(made)


def when(seconds: float) -> str:
    """Format seconds since 1970 as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
