"""Text tables and times."""

import time
from collections.abc import Iterable, Sequence


def text_table(rows: Iterable[Sequence[str]], *, indent: str = "") -> str:
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (indent + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(map(str.rstrip, padded))


def when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
