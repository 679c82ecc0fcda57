"""What a dataset's report says of each file it was made from, as rows and in a line."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

FILE_HEADERS: Final = ("file", "read", "usable games", "rejected", "boards")
"""Column names of `file_rows`."""


@dataclass(slots=True)
class FileReport:
    """How much of one file was read, and what of it."""

    read: float = 0.0
    """Fraction of the file, in [0, 1]."""
    games: int = 0
    """Usable games (and listed positions)."""
    rejected: int = 0


def file_rows(facts: Mapping[str, Any], *, most: int) -> list[tuple[str, ...]]:
    """Return what a dataset's report says of each file, those with the most boards first; none for engine games.

    At most so many files have a row; a last row says how many more there are.

    >>> file_rows({"files": {"a.pgn": {"read": 0.25, "games": 9, "rejected": 1}}, "sources": {"a.pgn": 30}}, most=5)
    [('a.pgn', '25.0%', '9', '1', '30')]
    """
    files, boards = facts.get("files", {}), facts["sources"]
    named = sorted(files, key=lambda name: (-boards.get(name, 0), name))[:most]
    counts = ((name, files[name]["games"], files[name]["rejected"], boards.get(name, 0)) for name in named)
    rows: list[tuple[str, ...]] = [
        (name, _percent(files[name]["read"]), *(f"{number:,}" for number in numbers)) for name, *numbers in counts
    ]
    more = len(files) - most
    return [*rows, (f"and {more:,} more files", "", "", "", "")] if more > 0 else rows


def files_in_a_line(facts: Mapping[str, Any], *, most: int) -> str:
    """Return the files with their boards and how far they were read; empty for engine games.

    >>> files_in_a_line({"files": {"a.pgn": {"read": 0.25, "games": 9, "rejected": 1}}, "sources": {"a.pgn": 30}}, most=5)
    'a.pgn 30 boards (25.0% read)'
    """
    return ", ".join(f"{name} {boards} boards ({read} read)" if read else name for name, read, _, _, boards in file_rows(facts, most=most))


def _percent(fraction: float) -> str:
    return "<0.1%" if 0 < fraction < 0.001 else "100%" if fraction > 0.9999 else f"{fraction:.1%}"
